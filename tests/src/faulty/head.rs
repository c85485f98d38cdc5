//! The lines before a body: enough of HTTP/1.1 to break it on purpose.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The lines before a body.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) first: String,
    pub(super) headers: Vec<(String, String)>,
}

impl Head {
    /// Byte by byte, so that nothing of the body is taken; `None` at the end of the connection.
    pub(super) async fn read(socket: &mut TcpStream) -> io::Result<Option<Self>> {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            match socket.read_u8().await {
                Ok(byte) if text.len() < 65_536 => text.push(byte),
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                Err(_) if text.is_empty() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.trim_end().split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let headers = lines.filter_map(|line| line.split_once(':')).map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned()));
        Ok(Some(Self { first, headers: headers.collect() }))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.headers.retain(|(n, _)| n != name);
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let headers: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{}\r\n{headers}\r\n", self.first).into_bytes()
    }
}
