//! Requests to object stores, by kind: `terrane pool iostat -r`.
//!
//! Counts and not rates: stores are paid by the request.

use crate::table::{Listing, OutputFormat, count, size, text};
use serde_json::Value;

const REQUESTS: Listing = Listing {
    command: "pool iostat",
    key: "requests",
    columns: &[
        text("NAME", "name"),
        count("PUT", "put"),
        size("PUT-BYTES", "put_bytes"),
        count("GET", "get"),
        size("GET-BYTES", "get_bytes"),
        count("LIST", "list"),
        count("DELETE", "delete"),
        count("FAILED", "failed"),
    ],
};

/// The counts since `before`, or since the import.
pub fn of_period(now: &Value, before: Option<&Value>) -> Value {
    let mut period = now.clone();
    if let (Some(period), Some(before)) = (period.as_object_mut(), before) {
        for (key, count) in period {
            *count =
                count.as_u64().unwrap_or(0).saturating_sub(before[key.as_str()].as_u64().unwrap_or(0)).into();
        }
    }
    period
}

/// A line for each pool in an object store.
pub fn table(rows: &[Value], output: OutputFormat) -> String {
    let named = |row: &Value| {
        let mut counts = row["requests"].clone();
        counts["name"] = row["name"].clone();
        counts
    };
    let rows: Vec<Value> = rows.iter().filter(|row| row["requests"].is_object()).map(named).collect();
    if rows.is_empty() { String::new() } else { REQUESTS.render(&rows, output) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_those_of_the_period() {
        let (then, now) = (json!({"put": 3, "get": 5}), json!({"put": 10, "get": 5}));
        assert_eq!(of_period(&now, Some(&then)), json!({"put": 7, "get": 0}));
        assert_eq!(of_period(&now, None), now);
    }

    #[test]
    fn pools_without_an_object_store_have_no_line() {
        let rows = [json!({"name": "disk"}), json!({"name": "tank", "requests": {"put": 12, "get": 1}})];
        let text = table(&rows, OutputFormat::default());
        assert!(text.contains("tank") && text.contains("12") && !text.contains("disk"), "{text}");
        assert_eq!(table(&rows[..1], OutputFormat::default()), "");
    }
}
