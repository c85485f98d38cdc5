//! The folder origin, spoken to directly.

use crate::*;

/// Promise: no key, however it is spelt, reads outside the folder.
#[tokio::test]
async fn traversal_is_refused() {
    let world = world(limits()).await;
    world.put("sub/a", b"abc");
    let parent = world.folder.path().parent().expect("parent");
    let outside = tempfile::Builder::new().prefix("secret").tempfile_in(parent).expect("file");
    let name = outside.path().file_name().and_then(|n| n.to_str()).expect("name").to_owned();
    std::os::unix::fs::symlink(outside.path(), world.folder.path().join("link")).expect("link");
    for key in
        [format!("../{name}"), format!("sub/../../{name}"), outside.path().display().to_string(), "link".into(), "sub".into()]
    {
        assert_eq!(world.read(&key, 0, 9, None).await, Err(OriginError::NotFound), "{key}");
    }
    for path in [
        "/photos/%2e%2e/etc/passwd",
        "/photos/..%2f..%2fetc%2fpasswd",
        "/photos//etc/passwd",
        "/photos/sub%00/a",
        "/photos/%2Fetc/passwd",
    ] {
        let (status, _) = raw(world.dev_addr, "GET", path, "").await;
        assert_eq!(status, 404, "{path}");
    }
}

/// Promise: conditions are answered from the descriptor whose bytes would be sent; what this face cannot do it says.
#[tokio::test]
async fn conditions_are_answered() {
    let world = world(limits()).await;
    world.put("a", b"abc");
    let etag = world.s3.head(&id("a"), soon()).await.expect("head").version;
    for (method, path, headers, want) in [
        ("GET", "/photos/a", format!("if-match: {etag}\r\n"), 200),
        ("GET", "/photos/a", "if-match: \"other\"\r\n".into(), 412),
        ("GET", "/photos/a", "if-match: *\r\n".into(), 200),
        ("HEAD", "/photos/a", "if-match: \"other\"\r\n".into(), 412),
        ("GET", "/photos/a", format!("if-none-match: {etag}\r\n"), 304),
        ("HEAD", "/photos/a", format!("if-none-match: {etag}\r\n"), 304),
        ("GET", "/photos/a", "if-none-match: \"other\"\r\n".into(), 200),
        ("GET", "/photos/a", "range: bytes=0-0\r\n".into(), 206),
        ("GET", "/photos/a", "range: bytes=3-9\r\n".into(), 416),
        ("GET", "/photos/a", "range: bytes=-2\r\n".into(), 206),
        ("GET", "/other/a", String::new(), 404),
        ("GET", "/", String::new(), 200),
        ("HEAD", "/photos", String::new(), 200),
        ("PUT", "/photos/a", "content-length: 0\r\n".into(), 501),
        ("DELETE", "/photos/a", String::new(), 501),
    ] {
        let (status, text) = raw(world.dev_addr, method, path, &headers).await;
        assert_eq!(status, want, "{method} {path} {headers} -> {text}");
    }
    assert_eq!(std::fs::read(world.folder.path().join("a")).expect("file"), b"abc");
}

/// Promise: with a delimiter, keys below it are folded into one prefix each, pages included.
#[tokio::test]
async fn delimiter_folds_keys() {
    let world = world(limits()).await;
    for key in ["a/1", "a/2", "b", "c/d/1", "c/d/2", "c/e", "d"] {
        world.put(key, b"x");
    }
    std::fs::create_dir(world.folder.path().join("empty")).expect("folder");
    let mut query = "/photos?list-type=2&delimiter=%2F&max-keys=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let (status, text) = raw(world.dev_addr, "GET", &query, "").await;
        assert_eq!(status, 200);
        let tags = |tag: &str| -> Vec<String> {
            let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
            text.split(&open).skip(1).filter_map(|t| t.split(&close).next()).map(str::to_owned).collect()
        };
        let folded: Vec<String> =
            tags("CommonPrefixes").iter().map(|t| t.replace("<Prefix>", "").replace("</Prefix>", "")).collect();
        seen.extend(tags("Key").into_iter().chain(folded));
        match tags("NextContinuationToken").first() {
            Some(token) => query = format!("/photos?list-type=2&delimiter=%2F&max-keys=2&continuation-token={token}"),
            None => break,
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, ["a/", "b", "c/", "d"]);
}

/// Promise: a file that is replaced in mid-body goes on as it was; one that is cut short breaks the connection and is never padded.
#[tokio::test]
async fn body_is_whole_or_broken() {
    const SIZE: u64 = 64 << 20;
    for cut in [false, true] {
        let world = world(limits()).await;
        let path = world.folder.path().join("big");
        let file = std::fs::File::create(&path).expect("file");
        file.set_len(SIZE).expect("size");
        let mut socket = TcpStream::connect(world.dev_addr).await.expect("connect");
        socket.write_all(b"GET /photos/big HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("ask");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.expect("head"));
        }
        if cut {
            file.set_len(SIZE / 2).expect("cut");
        } else {
            world.put("big", b"new");
        }
        let mut body = Vec::new();
        let ended = socket.read_to_end(&mut body).await;
        if cut {
            assert!((body.len() as u64) <= SIZE / 2, "{} bytes", body.len());
        } else {
            ended.expect("whole");
            assert_eq!(body.len() as u64, SIZE);
        }
    }
}

/// Status and all text of one plain request.
async fn raw(addr: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(addr).await.expect("connect");
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).await.expect("ask");
    let mut text = Vec::new();
    socket.read_to_end(&mut text).await.expect("answer");
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("status");
    (status, text)
}
