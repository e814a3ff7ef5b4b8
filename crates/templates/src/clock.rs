//! The local time as Python's `datetime.now().strftime(format)` writes it, in the C locale.

use chrono::{DateTime, Datelike, Local, Timelike};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The width limit for a field; a wider one is an attack.
const MOST_WIDTH: usize = 1000;

/// Returns the local time in this format.
pub(super) fn strftime_now(format: &str) -> String {
    strftime(format, &Local::now())
}

/// A directive's padding and case: glibc's flags.
#[derive(Clone, Copy, Default)]
struct Flags {
    pad: Option<char>,
    case: Option<char>,
    width: Option<usize>,
}

fn strftime(format: &str, now: &DateTime<Local>) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let mut directive = rest[at + 1..].chars();
        let mut flags = Flags::default();
        let written = loop {
            match directive.next() {
                Some(flag @ ('-' | '_' | '0')) if flags.width.is_none() => flags.pad = Some(flag),
                Some(flag @ ('^' | '#')) => flags.case = Some(flag),
                Some(digit @ '0'..='9') => {
                    let width = flags.width.unwrap_or(0) * 10 + digit as usize - '0' as usize;
                    flags.width = Some(width.min(MOST_WIDTH));
                }
                Some('E' | 'O') => {} // alternatives in other locales
                Some(code) => break field(code, flags, now),
                None => break None,
            }
        };
        let length = rest.len() - at - 1 - directive.as_str().len();
        match written {
            Some(text) => out.push_str(&text),
            None => out.push_str(&rest[at..at + 1 + length]), // glibc leaves it unchanged
        }
        rest = directive.as_str();
    }
    out + rest
}

/// Returns a directive's text, or `None` if there is no such directive.
fn field(code: char, flags: Flags, now: &DateTime<Local>) -> Option<String> {
    let text = |text: &str| Some(padded(text, flags, ' ', 0));
    let number = |n: i64, width: usize| Some(padded(&n.to_string(), flags, '0', width));
    let spaced = |n: i64, width: usize| Some(padded(&n.to_string(), flags, ' ', width));
    let whole = |format: &str| Some(padded(&strftime(format, now), flags, ' ', 0));
    let day = now.weekday().num_days_from_sunday();
    let name =
        |names: &[&'static str], index: u32| names.get(index as usize).copied().unwrap_or_default();
    let (weekday, month) = (name(&DAYS, day), name(&MONTHS, now.month0()));
    let hour12 = i64::from(now.hour12().1);
    let half = if now.hour12().0 { "PM" } else { "AM" };
    let week = |first: u32| i64::from((now.ordinal0() + 7 - (day + 7 - first) % 7) / 7);
    let iso = now.iso_week();
    match code {
        'a' => text(&weekday[..3]),
        'A' => text(weekday),
        'b' | 'h' => text(&month[..3]),
        'B' => text(month),
        'c' => whole("%a %b %e %H:%M:%S %Y"),
        'C' => number(i64::from(now.year() / 100), 2),
        'd' => number(now.day().into(), 2),
        'D' | 'x' => whole("%m/%d/%y"),
        'e' => spaced(now.day().into(), 2),
        'f' => Some(format!("{:06}", now.nanosecond() / 1000 % 1_000_000)),
        'F' => whole("%Y-%m-%d"),
        'g' => number((iso.year() % 100).into(), 2),
        'G' => number(iso.year().into(), 0),
        'H' => number(now.hour().into(), 2),
        'I' => number(hour12, 2),
        'j' => number(now.ordinal().into(), 3),
        'k' => spaced(now.hour().into(), 2),
        'l' => spaced(hour12, 2),
        'm' => number(now.month().into(), 2),
        'M' => number(now.minute().into(), 2),
        'n' => text("\n"),
        'p' if flags.case == Some('#') => text(&half.to_lowercase()),
        'p' => text(half),
        'P' => text(&half.to_lowercase()),
        'r' => whole("%I:%M:%S %p"),
        'R' => whole("%H:%M"),
        's' => number(now.timestamp(), 0),
        'S' => number(now.second().into(), 2),
        't' => text("\t"),
        'T' | 'X' => whole("%H:%M:%S"),
        'u' => number(now.weekday().number_from_monday().into(), 1),
        'U' => number(week(0), 2),
        'V' => number(iso.week().into(), 2),
        'w' => number(day.into(), 1),
        'W' => number(week(1), 2),
        'y' => number((now.year() % 100).into(), 2),
        'Y' => number(now.year().into(), 0),
        'z' | 'Z' => text(""), // Python's datetime.now() has no zone
        '%' => text("%"),
        _ => None,
    }
}

fn padded(text: &str, flags: Flags, pad: char, width: usize) -> String {
    let (pad, width) = match flags.pad {
        Some('-') => return cased(text, flags),
        Some('_') => (' ', flags.width.unwrap_or(width)),
        Some(zero) => (zero, flags.width.unwrap_or(width)),
        None => (pad, flags.width.unwrap_or(width)),
    };
    let n = width.saturating_sub(text.chars().count());
    std::iter::repeat_n(pad, n).collect::<String>() + &cased(text, flags)
}

fn cased(text: &str, flags: Flags) -> String {
    match flags.case {
        Some('^') => text.to_uppercase(),
        Some('#') if text != text.to_lowercase() || text.len() > 2 => text.to_uppercase(),
        _ => text.to_string(),
    }
}
