//! A template's source, rewritten where minijinja's syntax differs from Jinja2's.

/// Rewrites a transformers template so that minijinja reads it in the same way:
///
/// - Line ends become `\n`, also inside strings, as in Jinja2's lexer.
/// - `{% generation %}` becomes `{% with %}`: for rendering, transformers' tag is a scope.
/// - Escapes in string literals are resolved as in Python.
///
/// # Errors
/// If a string has an escape that is not valid in Python, or the template has a character that is not supported.
pub(super) fn rewritten(source: &str) -> Result<String, String> {
    // Python treats some of these as whitespace, and rewrite.rs uses one as a delimiter.
    if let Some(c) = source
        .chars()
        .find(|c| matches!(c, '\x02' | '\x1c'..='\x1f'))
    {
        return Err(format!(
            "the character {c:?} in a template is not supported"
        ));
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest
        .find("{%")
        .into_iter()
        .chain(rest.find("{{"))
        .chain(rest.find("{#"))
        .min()
    {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let length = if tag.starts_with("{#") {
            tag.find("#}").map(|end| end + 2)
        } else if tag.starts_with("{%") && keyword(tag) == "raw" {
            let start = tag.find("%}").map_or(tag.len(), |end| end + 2);
            // minijinja drops a line end there, and Jinja2 does not.
            if tag[start..].starts_with('\n') && !tag[..start].ends_with("-%}") {
                out.push_str(&tag[..start]);
                out.push('\n');
                rest = &tag[start..];
                let length = end_of_raw(tag).map_or(rest.len(), |length| length - start);
                out.push_str(&rest[..length]);
                rest = &rest[length..];
                continue;
            }
            end_of_raw(tag)
        } else {
            None
        };
        if let Some(length) = length {
            out.push_str(&tag[..length]);
            rest = &tag[length..];
            continue;
        }
        let end = if tag.starts_with("{%") { "%}" } else { "}}" };
        let mut tokens = vec![tag[..2].to_string()];
        let length = 2 + tokenize(&tag[2..], end, &mut tokens)?;
        match (tokens[0].as_str(), keyword(tag)) {
            ("{%", "generation") => rename(&mut tokens, "generation", "with"),
            ("{%", "endgeneration") => rename(&mut tokens, "endgeneration", "endwith"),
            _ => {}
        }
        out.extend(tokens);
        rest = &tag[length..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns a tag's first word.
fn keyword(tag: &str) -> &str {
    let body = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let end = body.find(|c: char| !c.is_alphanumeric() && c != '_');
    &body[..end.unwrap_or(body.len())]
}

/// Returns the length of a `{% raw %}` block, including its `{% endraw %}`.
fn end_of_raw(block: &str) -> Option<usize> {
    let mut from = 2;
    loop {
        let at = from + block[from..].find("{%")?;
        if keyword(&block[at..]) == "endraw" {
            return Some(at + block[at..].find("%}")? + 2);
        }
        from = at + 2;
    }
}

fn rename(tokens: &mut [String], from: &str, to: &str) {
    if let Some(token) = tokens.iter_mut().find(|token| *token == from) {
        *token = to.to_string();
    }
}

/// Splits the inside of a tag into tokens, up to and including `end`; returns its length. An unfinished tag is left for the
/// parser to refuse.
fn tokenize(body: &str, end: &str, tokens: &mut Vec<String>) -> Result<usize, String> {
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(c) = body[at..].chars().next() {
        let rest = &body[at..];
        if depth == 0 && rest.starts_with(end) {
            tokens.push(end.to_string());
            return Ok(at + end.len());
        }
        let length = match c {
            '\'' | '"' => {
                let Some(length) = string_length(rest, c) else {
                    tokens.push(rest.to_string());
                    return Ok(body.len());
                };
                tokens.push(quoted(&unescaped(&rest[1..length - 1])?));
                at += length;
                continue;
            }
            '(' | '[' | '{' => {
                depth += 1;
                1
            }
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                1
            }
            _ if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if c.is_whitespace() => {
                let other = rest.find(|c: char| !c.is_whitespace());
                other.unwrap_or(rest.len())
            }
            '*' | '/' if rest[1..].starts_with(c) => 2,
            _ => c.len_utf8(),
        };
        tokens.push(rest[..length].to_string());
        at += length;
    }
    Ok(body.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns a string literal's length with its quotes.
fn string_length(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Writes a literal that both Jinja2 and minijinja read as `text`.
pub(super) fn quoted(text: &str) -> String {
    let mut literal = String::from("'");
    for c in text.chars() {
        match c {
            '\\' => literal.push_str("\\\\"),
            '\'' => literal.push_str("\\'"),
            '\r' => literal.push_str("\\r"),
            '\n' => literal.push_str("\\n"),
            c => literal.push(c),
        }
    }
    literal + "'"
}

/// Resolves a string's escapes like Python's codec `unicode-escape`.
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(escape) = chars.next() else { break };
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(escape),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\x0b'),
            '0'..='7' => {
                let more = chars.as_str().chars().take(2);
                let n = more.take_while(|c| c.is_digit(8)).count();
                let digits: String = [escape].into_iter().chain(chars.by_ref().take(n)).collect();
                out.push(character(&digits, 8)?);
            }
            'x' => out.push(character(&digits(&mut chars, 2)?, 16)?),
            'u' => out.push(wide(&mut chars)?),
            'U' => out.push(character(&digits(&mut chars, 8)?, 16)?),
            'N' => {
                return Err(
                    "the escape \\N{..} of a named character is not supported; write the character"
                        .into(),
                );
            }
            other if other.is_ascii() => out.extend(['\\', other]),
            other => {
                out += &match other as u32 {
                    code @ ..0x100 => format!("\\x{code:02x}"),
                    code @ ..0x10000 => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                }
            }
        }
    }
    Ok(out)
}

/// Reads the four digits after `\u`; a surrogate pair becomes one character.
fn wide(chars: &mut std::str::Chars) -> Result<char, String> {
    let first = digits(chars, 4)?;
    let unit = u32::from_str_radix(&first, 16).unwrap_or_default();
    if !(0xd800..0xdc00).contains(&unit) || !chars.as_str().starts_with("\\u") {
        return character(&first, 16);
    }
    let mut ahead = chars.clone();
    ahead.nth(1);
    let second = u32::from_str_radix(&digits(&mut ahead, 4)?, 16).unwrap_or_default();
    match char::decode_utf16([unit as u16, second as u16]).next() {
        Some(Ok(c)) => {
            *chars = ahead;
            Ok(c)
        }
        _ => Ok(char::REPLACEMENT_CHARACTER),
    }
}

fn digits(chars: &mut std::str::Chars, n: usize) -> Result<String, String> {
    let digits: String = chars.by_ref().take(n).collect();
    match digits.len() == n && digits.chars().all(|c| c.is_ascii_hexdigit()) {
        true => Ok(digits),
        false => Err(format!(
            "a string has an escape of {n} digits that are not there: {digits:?}"
        )),
    }
}

fn character(digits: &str, radix: u32) -> Result<char, String> {
    let code = u32::from_str_radix(digits, radix).unwrap_or(u32::MAX);
    match (char::from_u32(code), code) {
        (Some(c), _) => Ok(c),
        (None, 0xd800..0xe000) => Ok(char::REPLACEMENT_CHARACTER),
        (None, _) => Err(format!(
            "a string has the escape of a character {digits} that does not exist"
        )),
    }
}
