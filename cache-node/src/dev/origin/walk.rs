//! The keys of a folder in S3's order: by bytes of the whole key, which is not the order of a tree. A folder `a` sorts as `a/`, so that
//! `a-b` comes before `a/x` and `a0` after. Walked lazily; in memory is one level for each step of depth.

use std::io;

use framecache::object::KEY_BYTES_MAX;

use super::folder::{Folder, Kind};

pub(super) struct Walk<'a> {
    folder: &'a Folder,
    prefix: &'a str,
    after: String,
    levels: Vec<Level>,
}

struct Level {
    /// `""` or a path that ends in `/`.
    path: String,
    /// Names in reverse order, folders with their `/`.
    names: Vec<String>,
}

impl<'a> Walk<'a> {
    /// Keys that begin with `prefix` and come after `after` (`""`: all).
    pub(super) fn new(folder: &'a Folder, prefix: &'a str, after: &str) -> io::Result<Self> {
        let mut walk = Self { folder, prefix, after: after.to_owned(), levels: Vec::new() };
        walk.descend(String::new())?;
        Ok(walk)
    }

    /// The next key that may be an object; its opening decides.
    pub(super) fn next(&mut self) -> io::Result<Option<String>> {
        while let Some(level) = self.levels.last_mut() {
            let Some(name) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            let key = format!("{}{name}", level.path);
            match (self.wants(&key), key.ends_with('/')) {
                (true, true) => self.descend(key)?,
                (true, false) => return Ok(Some(key)),
                // `skip_to` has passed it while its level was open.
                (false, _) => {}
            }
        }
        Ok(None)
    }

    /// Goes on after `after`, without opening what lies before it.
    pub(super) fn skip_to(&mut self, after: String) {
        self.after = after;
    }

    fn descend(&mut self, path: String) -> io::Result<()> {
        let mut names = Vec::new();
        for (mut name, kind) in self.folder.entries(path.strip_suffix('/').unwrap_or(&path))? {
            let is_folder = match kind {
                Kind::Folder => true,
                Kind::File => false,
                Kind::Unknown => self.folder.is_folder(&format!("{path}{name}")),
            };
            if is_folder {
                name.push('/');
            }
            if self.wants(&format!("{path}{name}")) {
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.levels.push(Level { path, names });
        Ok(())
    }

    /// Whether this key, or for a folder (with its `/`) any key under it, has the prefix and comes after the start.
    fn wants(&self, key: &str) -> bool {
        let is_folder = key.ends_with('/');
        let prefixed = key.starts_with(self.prefix) || (is_folder && self.prefix.starts_with(key));
        // S3 has no longer keys, and clients could not name them.
        let is_key = key.len() <= KEY_BYTES_MAX;
        let follows = key > self.after.as_str() || (is_folder && self.after.starts_with(key));
        is_key && prefixed && follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn make(root: &Path, keys: &[&str]) -> Folder {
        for key in keys {
            let path = root.join(key);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
            std::fs::write(path, key).expect("file");
        }
        Folder::open(root).expect("open")
    }

    /// Promise: the walk is the sorted list of keys, whatever the tree's shape, for every prefix and start.
    #[test]
    fn walk_equals_the_sorted_keys() {
        let root = tempfile::tempdir().expect("folder");
        let mut keys = ["a-b", "a/x", "a/y/z", "a0", "a.txt", "b", "c/d/e/f", "c/d0", "c/d-", "é/1", "Z", "a/y-", "a/y0"];
        let folder = make(root.path(), &keys);
        std::fs::create_dir(root.path().join("empty")).expect("folder");
        keys.sort_unstable();
        for prefix in ["", "a", "a/", "a/y", "c/d", "c/d/", "x", "é"] {
            for after in ["", "a", "a/", "a/x", "a/y", "a/y/", "a0", "c/d/e", "c/d/\u{10FFFF}", "zz"] {
                let want: Vec<_> = keys.into_iter().filter(|k| k.starts_with(prefix) && *k > after).collect();
                let mut walk = Walk::new(&folder, prefix, after).expect("walk");
                let walked: Vec<_> = std::iter::from_fn(|| walk.next().expect("next")).collect();
                assert_eq!(walked, want, "prefix {prefix:?} after {after:?}");
            }
        }
    }

    /// Promise: a path that is too long for a key is no key, and hides none.
    #[test]
    fn too_long_is_no_key() {
        let root = tempfile::tempdir().expect("folder");
        let deep = format!("d/{}", format!("{}/", "x".repeat(200)).repeat(5));
        let (longest, over) = (format!("{deep}{}", "y".repeat(17)), format!("{deep}{}", "z".repeat(18)));
        assert_eq!((longest.len(), over.len()), (1024, 1025));
        let folder = make(root.path(), &["a", &longest, &over, &format!("{deep}{}/{}", "w".repeat(16), "v".repeat(9)), "e"]);
        let mut walk = Walk::new(&folder, "", "").expect("walk");
        let walked: Vec<_> = std::iter::from_fn(|| walk.next().expect("next")).collect();
        assert_eq!(walked, ["a", longest.as_str(), "e"]);
    }

    /// Promise: skipping ahead leaves out exactly what lies before.
    #[test]
    fn skip_leaves_out_what_lies_before() {
        let root = tempfile::tempdir().expect("folder");
        let folder = make(root.path(), &["a/1", "a/2", "a/b/3", "b/1", "c"]);
        let mut walk = Walk::new(&folder, "", "").expect("walk");
        assert_eq!(walk.next().expect("next").as_deref(), Some("a/1"));
        walk.skip_to("a/\u{10FFFF}".into());
        let rest: Vec<_> = std::iter::from_fn(|| walk.next().expect("next")).collect();
        assert_eq!(rest, ["b/1", "c"]);
    }
}
