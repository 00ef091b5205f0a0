//! What of the machine a failure may depend on; its name and that of its user are left out.

use std::fmt::Write;

/// Kernel, system, processors and memory, a line each.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line_of = |path: &str, key: &str| {
        let text = read(path);
        let mut lines = text.lines().filter(|line| line.starts_with(key));
        lines.next().unwrap_or_default().to_owned()
    };
    let kernel = ["ostype", "osrelease", "version"];
    let kernel = kernel.map(|name| read(&format!("/proc/sys/kernel/{name}")).trim().to_owned());
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!("kernel: {} {}\n", kernel.join(" "), std::env::consts::ARCH);
    let _ = writeln!(text, "processors: {processors}");
    for (path, key) in [
        ("/proc/cpuinfo", "model name"),
        ("/etc/os-release", "PRETTY_NAME="),
        ("/proc/meminfo", "MemTotal"),
        ("/proc/meminfo", "MemAvailable"),
    ] {
        let _ = writeln!(text, "{}", line_of(path, key));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::machine;

    #[test]
    fn the_kernel_is_named_and_the_machine_is_not() {
        let text = machine();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        assert!(
            text.starts_with("kernel: Linux ") && text.contains("MemTotal"),
            "{text}"
        );
        assert!(host.len() < 4 || !text.contains(host), "{text}");
    }
}
