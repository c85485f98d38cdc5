//! Who may do what: a pure answer, asked before any look-up, hits included.
//!
//! A cache that checks at the origin only on a miss hands one tenant's objects to the next on a hit. So [`authorise`] is called
//! with caller, action, bucket and key before the key is looked for, and what no rule allows is denied.

use std::fmt;

use serde::Deserialize;

/// Largest policy file, and most rules of it: each request walks the list, 1,024 rules are a few microseconds.
const POLICY_BYTES_MAX: usize = 256 << 10;
const RULES_MAX: usize = 1024;

/// Longest name of a caller, in bytes: that of a SPIFFE id is 2,048, that of a Kubernetes service account below 400.
const CALLER_BYTES_MAX: usize = 2048;

/// Longest pattern, in bytes: that of an S3 key and its star.
const PATTERN_BYTES_MAX: usize = 1025;

/// Somebody whose name a certificate or a token has proved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    name: Box<str>,
}

/// What is asked for. Several verbs of the wire are one action: whoever may read an object may know its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Bytes, pixels and metadata of an object.
    Read,
    /// Names of objects. The key is the prefix that is listed.
    List,
    /// Filling the cache ahead of time.
    Warm,
    /// Pinning, evicting, explaining.
    Admin,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// The reason is for the log; the caller is told `denied` alone.
    Deny {
        reason: &'static str,
    },
}

/// What the operator decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    AllowAll,
    Rules(Rules),
}

/// A policy file's rules; nothing but what they allow is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    caller: Pattern,
    bucket: Pattern,
    /// Keys must begin so.
    prefix: Box<str>,
    actions: [bool; 4],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Exactly(Box<str>),
    Begins(Box<str>),
}

/// Whether `caller` may do `action` to `key` of `bucket`. For [`Action::List`] the key is the prefix to list, for an action on a
/// whole bucket it is empty.
pub fn authorise(policy: &Policy, caller: &Caller, action: Action, bucket: &str, key: &str) -> Verdict {
    let rules = match policy {
        Policy::AllowAll => return Verdict::Allow,
        Policy::Rules(Rules(rules)) => rules,
    };
    // How far the best rule came: its next question is the reason.
    let mut reason = "no rule names this caller";
    let mut furthest = 0;
    for rule in rules {
        let steps = [
            (rule.caller.matches(&caller.name), "no rule names this caller"),
            (rule.bucket.matches(bucket), "no rule of this caller names this bucket"),
            (rule.actions[action as usize], "no rule of this caller and bucket names this verb"),
            (rule.covers(key), "no rule of this caller, bucket and verb covers this key"),
        ];
        match steps.iter().position(|(passed, _)| !passed) {
            None => return Verdict::Allow,
            Some(step) if step > furthest => (furthest, reason) = (step, steps[step].1),
            Some(_) => {}
        }
    }
    Verdict::Deny { reason }
}

impl Caller {
    /// A proved name: 1 to 2,048 bytes without control characters, else `None`.
    pub fn new(name: &str) -> Option<Self> {
        let legal = (1..=CALLER_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
        legal.then(|| Self { name: name.into() })
    }

    /// Whoever connects to a node that asks for no name.
    pub fn anonymous() -> Self {
        Self { name: "anonymous".into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

impl Action {
    /// The action as a policy and a metric label write it.
    pub fn name(self) -> &'static str {
        match self {
            Action::Read => "read",
            Action::List => "list",
            Action::Warm => "warm",
            Action::Admin => "admin",
        }
    }
}

impl Rule {
    /// A key that begins with the prefix, and does not climb out of it: stores behind a file system or a proxy resolve `..`,
    /// and no honest key holds it.
    fn covers(&self, key: &str) -> bool {
        let climbs = || key.split('/').any(|segment| segment == ".." || segment == ".");
        self.prefix.is_empty() || (key.starts_with(&*self.prefix) && !climbs())
    }
}

impl Pattern {
    fn matches(&self, text: &str) -> bool {
        match self {
            Pattern::Exactly(whole) => **whole == *text,
            Pattern::Begins(start) => text.starts_with(&**start),
        }
    }

    /// A name, or the beginning of names followed by `*`.
    fn parse(text: &str) -> Result<Self, String> {
        match bounded(text)?.strip_suffix('*') {
            Some(start) if !start.contains('*') => Ok(Pattern::Begins(start.into())),
            None if !text.contains('*') && !text.is_empty() => Ok(Pattern::Exactly(text.into())),
            _ => Err(format!("{text:?} is no pattern: write a name, or its beginning and one `*`")),
        }
    }
}

/// A policy file that is not obeyed, because it cannot be: one sentence that says where and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {place}: {message}")]
pub struct PolicyError {
    place: String,
    message: String,
}

impl Policy {
    /// The rules of a policy file's text. A file that is half right is refused whole.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let whole = |message: &str| PolicyError { place: "file".into(), message: message.into() };
        if text.len() > POLICY_BYTES_MAX {
            return Err(whole("is larger than 256 KiB; write prefixes and stars in place of single names"));
        }
        let file: PolicyFile = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start.min(text.len())].matches('\n').count() + 1;
            PolicyError { place: format!("line {line}"), message: error.message().replace('\n', " ") }
        })?;
        let PolicyFile { allow } = file;
        if allow.len() > RULES_MAX {
            return Err(whole("has more than 1024 rules; write prefixes and stars in place of single names"));
        }
        let lift = |(index, rule): (usize, RawRule)| {
            rule.lift().map_err(|message| PolicyError { place: format!("rule {} of `[[allow]]`", index + 1), message })
        };
        Ok(Policy::Rules(Rules(allow.into_iter().enumerate().map(lift).collect::<Result<_, _>>()?)))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    allow: Vec<RawRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    caller: String,
    bucket: String,
    #[serde(default)]
    prefix: String,
    verbs: Vec<Action>,
}

impl RawRule {
    fn lift(self) -> Result<Rule, String> {
        let RawRule { caller, bucket, prefix, verbs } = self;
        let mut actions = [false; 4];
        verbs.iter().for_each(|action| actions[*action as usize] = true);
        if verbs.is_empty() {
            return Err("`verbs` is empty: name some of read, list, warm, admin, or delete the rule".into());
        }
        let named = |key: &str, text: &str| Pattern::parse(text).map_err(|error| format!("`{key}`: {error}"));
        Ok(Rule {
            caller: named("caller", &caller)?,
            bucket: named("bucket", &bucket)?,
            prefix: lift_prefix(&prefix).map_err(|error| format!("`prefix`: {error}"))?,
            actions,
        })
    }
}

/// A folder with its slash, or a beginning with its star. `2024` alone is refused: its writer thinks of a folder, and it would
/// open `2024-private/` too.
fn lift_prefix(text: &str) -> Result<Box<str>, String> {
    let start = bounded(text)?.strip_suffix('*').unwrap_or(text);
    if start.contains('*') {
        return Err(format!("{text:?} has a `*` before its end"));
    }
    if start.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(format!("{text:?} has a `.` or `..` segment, which no key may have"));
    }
    if start.len() == text.len() && !text.is_empty() && !text.ends_with('/') {
        return Err(format!(
            "{text:?} ends in the middle of a name: write \"{text}/\" for the folder, \"{text}*\" for all that begins so"
        ));
    }
    Ok(start.into())
}

fn bounded(text: &str) -> Result<&str, String> {
    if text.len() <= PATTERN_BYTES_MAX { Ok(text) } else { Err(format!("longer than {PATTERN_BYTES_MAX} bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
        [[allow]]
        caller = "train-*"
        bucket = "photos"
        prefix = "2024/"
        verbs = ["read", "list"]

        [[allow]]
        caller = "ops"
        bucket = "*"
        verbs = ["read", "list", "warm", "admin"]

        [[allow]]
        caller = "team/a"
        bucket = "clips-*"
        prefix = "run-7*"
        verbs = ["warm"]
    "#;

    fn ask(caller: &str, action: Action, bucket: &str, key: &str) -> bool {
        let policy = Policy::parse(POLICY).expect("policy");
        authorise(&policy, &Caller::new(caller).expect("caller"), action, bucket, key) == Verdict::Allow
    }

    /// Exactly what a rule says is allowed, and its neighbours are not.
    #[test]
    fn rules_end_where_they_say() {
        use Action::*;
        let cases: &[(&str, Action, &str, &str, bool)] = &[
            ("train-1", Read, "photos", "2024/a.jpg", true),
            ("train-", Read, "photos", "2024/", true),
            ("train-1", Read, "photos", "2024/a/b/c", true),
            // Callers: the star covers what follows, and nothing else.
            ("train", Read, "photos", "2024/a.jpg", false),
            ("Train-1", Read, "photos", "2024/a.jpg", false),
            ("xtrain-1", Read, "photos", "2024/a.jpg", false),
            ("train-*", Read, "photos", "2024/a.jpg", true),
            ("ops2", Read, "photos", "2024/a.jpg", false),
            (" ops", Read, "photos", "2024/a.jpg", false),
            ("team/ab", Warm, "clips-1", "run-7/x", false),
            // Buckets.
            ("train-1", Read, "photos2", "2024/a.jpg", false),
            ("train-1", Read, "photo", "2024/a.jpg", false),
            ("team/a", Warm, "clips", "run-7/x", false),
            ("team/a", Warm, "clips-", "run-7/x", true),
            // Keys: a folder is not its neighbour, its name, or its parent.
            ("train-1", Read, "photos", "2024", false),
            ("train-1", Read, "photos", "20245/a.jpg", false),
            ("train-1", Read, "photos", "2024-private/a.jpg", false),
            ("train-1", Read, "photos", "/2024/a.jpg", false),
            ("train-1", Read, "photos", "2024\\a.jpg", false),
            ("train-1", Read, "photos", "2024%2Fa.jpg", false),
            ("train-1", Read, "photos", "", false),
            // A key cannot climb.
            ("train-1", Read, "photos", "2024/../2023/a.jpg", false),
            ("train-1", Read, "photos", "2024/..", false),
            ("train-1", Read, "photos", "2024/./a.jpg", false),
            ("train-1", Read, "photos", "2024/..a/b..jpg", true),
            // A listing shows everything below its prefix.
            ("train-1", List, "photos", "2024/", true),
            ("train-1", List, "photos", "2024/01/", true),
            ("train-1", List, "photos", "2024", false),
            ("train-1", List, "photos", "", false),
            // Verbs imply nothing.
            ("train-1", Warm, "photos", "2024/a.jpg", false),
            ("train-1", Admin, "photos", "2024/a.jpg", false),
            ("team/a", Warm, "clips-1", "run-77/x", true),
            ("team/a", Read, "clips-1", "run-7/x", false),
            ("ops", Admin, "anything", "", true),
            ("ops", Read, "anything", "a/../b", true),
        ];
        for (caller, action, bucket, key, allowed) in cases {
            assert_eq!(ask(caller, *action, bucket, key), *allowed, "{caller} {action:?} {bucket} {key}");
        }
    }

    /// A denial says to the log how far the best rule came.
    #[test]
    fn denials_say_why() {
        let policy = Policy::parse(POLICY).expect("policy");
        let cases = [
            ("x", Action::Read, "photos", "2024/a", "names this caller"),
            ("train-1", Action::Read, "clips", "2024/a", "names this bucket"),
            ("train-1", Action::Warm, "photos", "2024/a", "names this verb"),
            ("train-1", Action::Read, "photos", "2023/a", "covers this key"),
        ];
        for (caller, action, bucket, key, part) in cases {
            let verdict = authorise(&policy, &Caller::new(caller).expect("caller"), action, bucket, key);
            assert!(matches!(verdict, Verdict::Deny { reason } if reason.contains(part)), "{verdict:?}");
        }
    }

    /// An empty policy allows nothing; allow-all allows everything.
    #[test]
    fn the_ends_of_the_scale() {
        let caller = Caller::anonymous();
        let empty = Policy::parse("").expect("empty");
        assert!(matches!(authorise(&empty, &caller, Action::Read, "b", "k"), Verdict::Deny { .. }));
        assert_eq!(authorise(&Policy::AllowAll, &caller, Action::Admin, "b", "k"), Verdict::Allow);
    }

    /// What may be read in two ways is refused, with what to write.
    #[test]
    fn doubtful_policies_are_refused() {
        let rule = |caller: &str, bucket: &str, prefix: &str, verbs: &str| {
            format!("[[allow]]\ncaller = '{caller}'\nbucket = '{bucket}'\nprefix = '{prefix}'\nverbs = [{verbs}]\n")
        };
        let cases = [
            (rule("a", "b", "2024", "'read'"), "write \"2024/\" for the folder, \"2024*\""),
            (rule("a*b", "b", "", "'read'"), "`caller`"),
            (rule("**", "b", "", "'read'"), "`caller`"),
            (rule("", "b", "", "'read'"), "`caller`"),
            (rule("a", "*b", "", "'read'"), "`bucket`"),
            (rule("a", "b", "*/x/", "'read'"), "`*` before its end"),
            (rule("a", "b", "x/../y/", "'read'"), "`..` segment"),
            (rule("a", "b", "", ""), "`verbs` is empty"),
            (rule("a", "b", "", "'write'"), "unknown variant"),
            (rule(&"a".repeat(1026), "b", "", "'read'"), "longer than 1025"),
            ("[[allow]]\ncaller = 'a'\nbucket = 'b'\n".into(), "missing field `verbs`"),
            ("[[allow]]\ncaller = 'a'\nbuckets = 'b'\nverbs = []\n".into(), "line 3: unknown field `buckets`"),
            ("[[deny]]\ncaller = 'a'".into(), "unknown field `deny`"),
            ("#".repeat(POLICY_BYTES_MAX + 1), "256 KiB"),
            (rule("a", "b", "", "'read'").repeat(RULES_MAX + 1), "1024 rules"),
        ];
        for (text, part) in cases {
            let said = Policy::parse(&text).expect_err(part).to_string();
            assert!(said.contains(part) && !said.contains('\n'), "{said}\nwant: {part}");
        }
        let second = rule("a", "b", "", "'read'") + &rule("a", "b", "x", "'read'");
        assert!(Policy::parse(&second).expect_err("second").to_string().contains("rule 2 of `[[allow]]`"));
    }

    /// A name from outside is bounded and printable.
    #[test]
    fn callers_are_checked() {
        for (name, legal) in [("a", true), ("", false), ("a\nb", false), ("a\u{7f}", false), ("ns/sa", true)] {
            assert_eq!(Caller::new(name).is_some(), legal, "{name:?}");
        }
        assert!(Caller::new(&"a".repeat(CALLER_BYTES_MAX + 1)).is_none());
    }
}
