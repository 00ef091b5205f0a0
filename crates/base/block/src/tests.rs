use super::*;

fn exercise(device: &dyn TierDevice) {
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 512) as u8).collect();
    device.write(8192, &data).unwrap();
    device.flush().unwrap();
    let mut found = vec![0; data.len()];
    device.read(8192, &mut found).unwrap();
    assert!(found == data);
    let mut one = [0; IO_BYTES];
    device.read(8192 + (1 << 20), &mut one).unwrap();
    assert_eq!(one[..], data[1 << 20..][..IO_BYTES]);
    device.discard(0, 4096).unwrap();
    let counts = device.counts();
    assert_eq!((counts.written_bytes, counts.flushes), (3 << 20, 1));
}

#[test]
fn files_and_memory_hold_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ssd.img");
    BlockFile::create(&path, 4 << 20).unwrap();
    let file = BlockFile::open(&path, 4 << 20).unwrap();
    eprintln!("access: {}", file.access());
    exercise(&file);
    exercise(&MemoryBlocks::new("memory", 4 << 20));
}

/// Writes that are durable on return, from memory that direct I/O accepts, from other memory, and of more than one
/// call writes.
#[test]
fn durable_writes_hold_and_count_as_a_write_and_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ssd.img");
    BlockFile::create(&path, 8 << 20).unwrap();
    let file = BlockFile::open(&path, 8 << 20).unwrap();
    let memory = MemoryBlocks::new("memory", 8 << 20);
    let devices: [&dyn TierDevice; 2] = [&file, &memory];
    for device in devices {
        let mut aligned = Buffer::new(2 * IO_BYTES);
        aligned.bytes().fill(1);
        device.write_durable(4096, aligned.bytes()).unwrap();
        let data: Vec<u8> = (0..(3 << 20) + 8).map(|n: u32| (n / 512) as u8).collect();
        device.write_durable(16384, &data[8..][..8192]).unwrap();
        device.write_durable(1 << 20, &data[8..]).unwrap();
        let mut found = vec![0; 8 << 20];
        device.read(0, &mut found).unwrap();
        assert!(found[4096..12288].iter().all(|&b| b == 1));
        assert!(found[16384..][..8192] == data[8..][..8192]);
        assert!(found[1 << 20..][..3 << 20] == data[8..]);
        let counts = device.counts();
        assert_eq!(counts.written_bytes, 8192 + 8192 + (3 << 20));
        assert_eq!((counts.flushes, counts.errors), (3, 0));
    }
}

#[test]
fn a_file_that_is_too_short_or_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.img");
    let text = |bytes| match BlockFile::open(&path, bytes) {
        Err(e) => e.to_string(),
        Ok(_) => String::new(),
    };
    assert!(text(4096).contains("x.img"), "{}", text(4096));
    BlockFile::create(&path, 8192).unwrap();
    assert!(text(1 << 20).contains("found 8192"), "{}", text(1 << 20));
}

#[test]
fn what_fails_says_so() {
    let device = MemoryBlocks::new("m", 1 << 20);
    device.fail(true);
    assert!(device.write(0, &[0; IO_BYTES]).is_err());
    assert!(device.flush().is_err());
    assert_eq!(device.counts().errors, 2);
}

#[test]
fn a_reader_reads_and_does_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ssd.img");
    BlockFile::create(&path, 1 << 20).unwrap();
    let file = BlockFile::open(&path, 1 << 20).unwrap();
    file.write(8192, &[7; 2 * IO_BYTES]).unwrap();
    // Whatever has the name by then.
    std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    let fd = file.reader().unwrap().unwrap();
    let written = rustix::io::pwrite(&fd, &[1; IO_BYTES], 0);
    assert_eq!(written, Err(rustix::io::Errno::BADF));
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    let reader = BlockReader::new(fd);
    let found = reader.read(4096, 3 * IO_BYTES).unwrap().bytes().to_vec();
    assert!(found[..IO_BYTES].iter().all(|b| *b == 0));
    assert!(found[IO_BYTES..].iter().all(|b| *b == 7));
    let behind = reader.read(1 << 20, IO_BYTES);
    assert!(behind.is_err(), "behind the end");
    assert!(MemoryBlocks::new("memory", 4096).reader().is_none());
}
