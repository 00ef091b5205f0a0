//! What the processes under `shale run --report` did, added up for people.

use crate::fields::count;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What the processes of a command did, together.
#[derive(Debug, Default)]
pub struct Summary {
    processes: u64,
    attached: u64,
    opened: u64,
    lost: u64,
    uncaught: u64,
    bypassed: u64,
    refused: BTreeSet<i64>,
    fast: BTreeMap<String, u64>,
    materialised: BTreeMap<String, u64>,
    kernel: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Summary {
    /// Adds up lines of JSON; what is none is passed over.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut sum = Self::default();
        for line in text.lines() {
            if let Ok(process) = serde_json::from_str::<Value>(line) {
                sum.add(&process);
            }
        }
        sum
    }

    fn add(&mut self, process: &Value) {
        let number = |name: &str| process[name].as_u64().unwrap_or(0);
        // What a failed `exec` has reported goes on.
        self.processes += u64::from(process["goes_on"] != true);
        self.attached += number("attached");
        self.opened += number("files_opened");
        self.lost += number("sessions_lost");
        self.uncaught += u64::from(process["all_sites"] == false);
        self.bypassed += u64::from(process["bypassed"] == true);
        let errnos = process["attach_errnos"].as_array().into_iter().flatten();
        self.refused.extend(errnos.filter_map(Value::as_i64));
        for (call, count) in process["fast"].as_object().into_iter().flatten() {
            *self.fast.entry(call.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
        for (why, count) in process["materialised"].as_object().into_iter().flatten() {
            *self.materialised.entry(why.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
        for (call, reasons) in process["kernel"].as_object().into_iter().flatten() {
            let all = self.kernel.entry(call.clone()).or_default();
            for (reason, count) in reasons.as_object().into_iter().flatten() {
                *all.entry(reason.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
        }
    }

    /// The table, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "shale run: {}, {} of them clients, {} of Shale opened\n",
            count(self.processes, "program image"),
            self.attached,
            count(self.opened, "file")
        );
        for errno in &self.refused {
            let why = std::io::Error::from_raw_os_error(*errno as i32);
            text += &format!("shale run: a process could not become a client: {why}\n");
        }
        if self.bypassed > 0 {
            text += &format!(
                "shale run: {} of them are of bypassed programs: they ran on the mount alone\n",
                self.bypassed
            );
        }
        if self.uncaught > 0 {
            text += &format!(
                "shale run: in {} of them libc's code may not be changed: they ran on the mount alone\n",
                self.uncaught
            );
        }
        if self.lost > 0 {
            text += &format!(
                "shale run: the daemon went away {}\n",
                count(self.lost, "time")
            );
        }
        let calls: BTreeSet<&String> = self.fast.keys().chain(self.kernel.keys()).collect();
        if !calls.is_empty() {
            text += &format!("{:<18} {:>12} {:>12}  why\n", "call", "fast", "kernel");
        }
        for call in calls {
            let none = BTreeMap::new();
            let reasons = self.kernel.get(call).unwrap_or(&none);
            let why: Vec<String> = reasons.iter().map(|(r, n)| format!("{r}: {n}")).collect();
            text += &format!(
                "{call:<18} {:>12} {:>12}  {}\n",
                self.fast.get(call).unwrap_or(&0),
                reasons.values().sum::<u64>(),
                why.join(", ")
            );
        }
        if !self.materialised.is_empty() {
            let why: Vec<String> = self
                .materialised
                .iter()
                .map(|(r, n)| format!("{r}: {n}"))
                .collect();
            text += &format!(
                "files opened in the process and then by the kernel: {}\n",
                why.join(", ")
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_processes_add_up() {
        let text = r#"{"attached":1,"files_opened":2,"fast":{"read":3},"kernel":{}}
not a report
{"goes_on":true,"attached":0,"files_opened":0,"fast":{},"kernel":{}}
{"attached":0,"all_sites":false,"files_opened":1,"sessions_lost":1,"attach_errnos":[13],"fast":{"read":4,"write":1},
"#
        .replace(
            ",\n",
            r#","kernel":{"mmap":{"mapped through the mount":2}}}"#,
        );
        let output = Summary::of(&text).text();
        assert!(
            output.contains("2 program images, 1 of them clients, 3 files"),
            "{output}"
        );
        assert!(
            output.contains("in 1 of them libc's code may not be changed"),
            "{output}"
        );
        assert!(
            output.contains("Permission denied")
                && output.contains("the daemon went away 1 time\n")
        );
        let lines: Vec<Vec<&str>> = output
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert!(lines.contains(&vec!["read", "7", "0"]), "{output}");
        assert!(output.contains("mapped through the mount: 2"), "{output}");
    }
}
