//! Mappings and accesses against plain memory, and their counts.

use std::os::fd::{AsFd, OwnedFd};

use crate::{Access, Map, MapOptions, Model, Path, Piece};
use shale_sys::ProtectionKey;

/// A directory in RAM that is removed at the end.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + 7) as u8 | 1).collect()
}

#[test]
fn copy_nt_of_every_size_and_alignment_equals_memcpy() {
    const AREA: usize = 512;
    let map = Map::anonymous(AREA).unwrap();
    let source = pattern(301);
    let mut found = [0; AREA];
    for skew in 0..64 {
        for size in 0..=300 {
            map.store(0, &[0xee; AREA]);
            let before = map.counts();
            map.copy_nt(64 + skew, &source[..size]);
            map.fence();
            let spent = (map.counts() - before).path(Path::Data);
            let mut expected = [0xee; AREA];
            expected[64 + skew..64 + skew + size].copy_from_slice(&source[..size]);
            map.load(0, &mut found);
            assert_eq!(found, expected, "size {size} at {skew}");

            let first_whole = (64 + skew).next_multiple_of(64);
            let whole = (64 + skew + size).saturating_sub(first_whole) / 64 * 64;
            let lines = if size == 0 {
                0
            } else {
                (64 + skew + size).div_ceil(64) - (64 + skew) / 64
            };
            assert_eq!(spent.bytes_stored, size as u64);
            assert_eq!(spent.bytes_streamed, whole as u64, "size {size} at {skew}");
            assert_eq!(spent.lines_flushed, (lines - whole / 64) as u64);
            assert_eq!((spent.fences, spent.bytes_loaded), (1, 0));
        }
    }
}

#[test]
fn gathered_slices_equal_one_run() {
    const AREA: usize = 1024;
    let map = Map::anonymous(AREA).unwrap();
    let source = pattern(600);
    let cuts = [0, 1, 15, 63, 64, 65, 128, 200];
    let mut found = [0; AREA];
    for skew in [0, 1, 8, 63] {
        for first in cuts {
            for second in cuts {
                for third in cuts {
                    let size = first + second + third;
                    map.store(0, &[0xee; AREA]);
                    let before = map.counts();
                    let (a, rest) = source.split_at(first);
                    let (b, rest) = rest.split_at(second);
                    map.copy_nt_with(64 + skew, &[a, b, &rest[..third]]);
                    let gathered = map.counts() - before;
                    let mut expected = [0xee; AREA];
                    expected[64 + skew..64 + skew + size].copy_from_slice(&source[..size]);
                    map.load(0, &mut found);
                    assert_eq!(found, expected, "{first}+{second}+{third} at {skew}");

                    let before = map.counts();
                    map.copy_nt(64 + skew, &source[..size]);
                    assert_eq!(map.counts() - before, gathered);
                }
            }
        }
    }
}

#[test]
fn zeros_and_copies_between_mappings() {
    let (from, to) = (Map::anonymous(4096).unwrap(), Map::anonymous(4096).unwrap());
    from.store(0, &pattern(4096));
    for (source, target, bytes) in [(0, 0, 4096), (5, 77, 1000), (64, 128, 64), (9, 3, 0)] {
        to.zero_nt(0, 4096);
        assert_eq!(to.load_array::<4096>(0), [0; 4096]);
        to.copy_nt_from(&from, source, target, bytes);
        let mut expected = vec![0; 4096];
        expected[target..target + bytes].copy_from_slice(&pattern(4096)[source..source + bytes]);
        assert_eq!(to.load_array::<4096>(0)[..], expected);
    }
    to.store(0, &pattern(4096));
    to.zero_nt(70, 200);
    let mut expected = pattern(4096);
    expected[70..270].fill(0);
    assert_eq!(to.load_array::<4096>(0)[..], expected);
}

#[test]
#[should_panic(expected = "overlap")]
fn copying_onto_itself_is_a_mistake() {
    let map = Map::anonymous(4096).unwrap();
    map.copy_nt_from(&map, 0, 63, 64);
}

#[test]
fn words_are_atomic_and_counted() {
    let map = Map::anonymous(4096).unwrap();
    let control = map.on(Path::Control);
    control.store_u64(8, 5);
    control.store_u32(4, 6);
    assert_eq!(control.load_u64(8), 5);
    assert_eq!(control.load_u32(4), 6);
    assert_eq!(control.swap_u32(4, 7), 6);
    assert_eq!(control.fetch_add_u64(8, u64::MAX), 5);
    assert_eq!(control.compare_exchange_u64(8, 4, 9), Ok(4));
    assert_eq!(control.compare_exchange_u32(4, 6, 9), Err(7));
    let counts = map.counts();
    assert_eq!(counts.path(Path::Control).bytes_stored, 12 + 4 + 8 + 8);
    assert_eq!(counts.path(Path::Control).bytes_loaded, 12 + 4 + 8 + 8 + 4);
    assert_eq!(counts.path(Path::Control), counts.total());

    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    map.fetch_add_u64(64, 1);
                }
            });
        }
    });
    assert_eq!(map.load_u64(64), 4000);
}

#[test]
fn ranges_are_checked() {
    let map = Map::anonymous(4096).unwrap();
    let outside: [fn(&Map); 8] = [
        |map| map.store(4090, &[0; 7]),
        |map| map.load(usize::MAX, &mut [0; 2]),
        |map| map.copy_nt(4097, &[]),
        |map| map.copy_nt_with(4000, &[&[0; 64], &[0; 64]]),
        |map| map.zero_nt(1, 4096),
        |map| map.flush(usize::MAX - 1, 1),
        |map| map.store_u64(4092, 0),
        |map| assert_eq!(map.load_u32(2), 0),
    ];
    for (index, access) in outside.into_iter().enumerate() {
        let caught = std::panic::catch_unwind(|| access(&map));
        assert!(caught.is_err(), "access {index} was let through");
    }
    map.store(4090, &[1; 6]);
    map.flush(4096, 0);
}

#[test]
fn pieces_lie_side_by_side() {
    let directory = directory();
    let files = [("a", 4096), ("b", 12288), ("c", 5000)];
    let paths = files.map(|(name, bytes)| (directory.path().join(name), bytes));
    let map = MapOptions::new().create_files(&paths).unwrap();
    assert_eq!(map.bytes(), 4096 + 12288 + 5000);
    let pieces: Vec<_> = map.pieces().collect();
    assert_eq!(pieces, [(0, 4096), (4096, 12288), (16384, 5000)]);
    assert!(!map.is_dax());
    assert!(map.instructions().contains('+'));

    // One run over both seams.
    let bytes = pattern(13000);
    map.copy_nt(4000, &bytes);
    map.fence();
    let read = |index: usize| std::fs::read(&paths[index].0).unwrap();
    assert_eq!(read(0)[4000..], bytes[..96]);
    assert_eq!(read(1), bytes[96..96 + 12288]);
    assert_eq!(read(2)[..13000 - 96 - 12288], bytes[96 + 12288..]);

    let names = paths.each_ref().map(|(path, _)| path.as_path());
    let again = Map::open_files(&names, Access::ReadOnly).unwrap();
    let mut found = vec![0; 13000];
    again.load(4000, &mut found);
    assert_eq!(found, bytes);
    assert_eq!(again.fds().count(), 3);
}

#[test]
fn a_read_only_map_gains_and_loses_writable_pages() {
    let directory = directory();
    let paths = ["a", "b", "c"].map(|name| (directory.path().join(name), 8192));
    let owner = MapOptions::new().create_files(&paths).unwrap();
    let read_only: Vec<Piece> = (0..3)
        .map(|index| Piece {
            fd: owner.read_only_fd(index).unwrap(),
            bytes: 8192,
        })
        .collect();
    let client = Map::open(read_only, Access::ReadOnly).unwrap();
    client.populate().unwrap();
    owner.store(12288, &[8; 10]);
    assert_eq!(client.load_array::<10>(12288), [8; 10]);
    let refused = |offset: usize, bytes: usize| {
        let store = std::panic::AssertUnwindSafe(|| client.store(offset, &vec![1; bytes]));
        assert!(std::panic::catch_unwind(store).is_err());
    };
    refused(12288, 8);

    let fds: Vec<OwnedFd> = owner
        .fds()
        .map(|fd| fd.try_clone_to_owned().unwrap())
        .collect();
    let error = client.remap_writable(12288..16384, &fds[0]).unwrap_err();
    assert!(
        matches!(error, crate::NvmError::OtherFile { .. }),
        "{error}"
    );
    let error = client
        .remap_writable(12288..16384, owner.read_only_fd(1).unwrap())
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
    refused(12288, 8);

    client.remap_writable(12288..16384, fds[1].as_fd()).unwrap();
    client.copy_nt(12288, &[9; 4096]);
    client.fence();
    assert_eq!(owner.load_array::<10>(12288), [9; 10]);
    refused(12287, 2);
    refused(16382, 3);
    refused(8192, 8);
    client.remap_read_only(12288..16384).unwrap();
    refused(12288, 8);
    assert_eq!(client.load_array::<10>(12288), [9; 10]);
}

/// Single pages of a segment in any order become writable and read-only again: the kernel never has more than a bounded
/// number of ranges for them, and what may be stored to is those pages and no other.
#[test]
fn single_writable_pages_come_to_a_bounded_number_of_ranges() {
    const PAGES: usize = 6000;
    let directory = directory();
    let owner = Map::create_file(&directory.path().join("segment"), PAGES * 4096).unwrap();
    let piece = crate::Piece {
        fd: owner.read_only_fd(0).unwrap(),
        bytes: PAGES * 4096,
    };
    let client = Map::open(vec![piece], Access::ReadOnly).unwrap();
    let file = owner.fds().next().unwrap();
    let range = |page: usize| page * 4096..(page + 1) * 4096;
    let ranges = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|l| l.ends_with("/segment")).count()
    };
    let allowed = |page: usize| page % 2 == 1;
    for page in (0..PAGES).map(|n| n * 4001 % PAGES).filter(|&p| allowed(p)) {
        client.remap_writable(range(page), file).unwrap();
        client.store(page * 4096, &page.to_le_bytes());
    }
    let most = 2 * (crate::writable::RUNS_MAX + 1) + 1;
    assert!(ranges() <= most, "{} ranges", ranges());
    for page in 0..PAGES {
        assert_eq!(client.is_writable(range(page)), allowed(page), "{page}");
        let stored = usize::from_le_bytes(owner.load_array(page * 4096));
        assert_eq!(stored, if allowed(page) { page } else { 0 });
    }
    for page in (0..PAGES).map(|n| n * 4003 % PAGES).filter(|&p| p % 4 == 1) {
        client.remap_read_only(range(page)).unwrap();
    }
    assert!(ranges() <= most, "{} ranges", ranges());
    for page in 0..PAGES {
        assert_eq!(client.is_writable(range(page)), page % 4 == 3, "{page}");
    }
}

#[test]
fn errors_name_path_and_reason() {
    let directory = directory();
    let path = directory.path().join("segment");
    drop(Map::create_file(&path, 8192).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
    let error = Map::create_file(&path, 8192).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    assert!(error.to_string().contains("segment: cannot create it"));

    let fd: OwnedFd = std::fs::File::open(&path).unwrap().into();
    let piece = Piece { fd, bytes: 8193 };
    let error = Map::open(vec![piece], Access::ReadOnly).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("expected at least 8193 bytes, found 8192"),
        "{text}"
    );

    let piece = |bytes| Piece {
        fd: std::fs::File::open(&path).unwrap().into(),
        bytes,
    };
    let error = Map::open(vec![piece(100), piece(100)], Access::ReadOnly).unwrap_err();
    assert!(error.to_string().contains("found 100"), "{error}");
    let error = Map::open(vec![piece(4096)], Access::ReadWrite).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    assert!(matches!(
        Map::open(Vec::new(), Access::ReadOnly),
        Err(crate::NvmError::NoPieces)
    ));
}

/// What one file can do, the next is taken to be able to do. If it is not, the map is refused, and its addresses are given to nobody.
#[test]
fn a_piece_that_cannot_be_mapped_refuses_the_map() {
    let dir = directory();
    let path = dir.path().join("piece");
    std::fs::write(&path, pattern(8192)).unwrap();
    let piece = |write_only: bool| Piece {
        fd: std::fs::File::options()
            .read(!write_only)
            .write(write_only)
            .open(&path)
            .unwrap()
            .into(),
        bytes: 8192,
    };
    let pieces = vec![piece(false), piece(true), piece(false)];
    let error = Map::open(pieces, Access::ReadOnly).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
    assert!(error.to_string().contains("piece: cannot map 8192 bytes"));
    let whole = Map::open(vec![piece(false), piece(false)], Access::ReadOnly).unwrap();
    let mut there = vec![0; 16384];
    whole.load(0, &mut there);
    assert_eq!(there, [pattern(8192), pattern(8192)].concat());
    assert!(!whole.is_writable(0..1));
}

#[test]
fn a_file_that_does_not_fit_leaves_nothing() {
    let directory = directory();
    let path = directory.path().join("huge");
    let error = Map::create_file(&path, 1 << 60).unwrap_err();
    assert!(error.to_string().contains("allocate"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_model_delays_what_it_should() {
    let timing = crate::Timing::new(Model::hinfs());
    let map = MapOptions::new()
        .timing(timing.clone())
        .anonymous(8192)
        .unwrap();
    map.store(0, &[1; 4096]);
    map.load_array::<4096>(0);
    map.fence();
    assert_eq!(
        timing.delayed_ns(),
        0,
        "only what goes to the medium is slow"
    );
    map.flush(0, 4096);
    assert_eq!(timing.delayed_ns(), 64 * 200);
    map.copy_nt(32, &[2; 128]);
    assert_eq!(timing.delayed_ns(), 67 * 200);

    let timing = crate::Timing::new(Model::strata());
    let map = MapOptions::new()
        .timing(timing.clone())
        .anonymous(8192)
        .unwrap();
    map.copy_nt(0, &[1; 4096]);
    assert_eq!(timing.delayed_ns(), 0);
    map.load_array::<4096>(0);
    map.load_u64(0);
    assert_eq!(timing.delayed_ns(), 400);
}

#[test]
fn views_outlive_their_map() {
    let view = {
        let map = Map::anonymous(4096).unwrap();
        map.store(0, &[3; 4]);
        map.on(Path::Log).clone()
    };
    assert_eq!(view.load_array::<4>(0), [3; 4]);
}

#[test]
fn pages_are_reached_while_the_key_is_open() {
    let Some(key) = ProtectionKey::alloc() else {
        eprintln!("SKIPPED: no protection keys here");
        return;
    };
    let fd = rustix::fs::memfd_create("protected", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    let piece = Piece { fd, bytes: 8192 };
    let options = MapOptions::new().protect(Some(key));
    let map = options.open(vec![piece], Access::ReadWrite).unwrap();
    key.open();
    map.store_u64(4096, 7);
    key.close();
    assert!(!key.is_open());
    key.open();
    assert_eq!(map.load_u64(4096), 7);
    // What the kernel does for a thread goes by the thread's register as well.
    let at = map.base.cast_const();
    key.close();
    let (from, to) = rustix::pipe::pipe().unwrap();
    // SAFETY: the kernel reads the page or refuses; the page is mapped.
    let written = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&to), at.cast(), 8) };
    let error = std::io::Error::last_os_error();
    key.open();
    drop(from);
    assert_eq!((written, error.raw_os_error()), (-1, Some(libc::EFAULT)));
}

/// Page faults of this thread so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // Behind the name, which may have spaces in it; the first one there is field 3.
    let rest = stat.rsplit(") ").next().unwrap();
    rest.split(' ').nth(10 - 3).unwrap().parse().unwrap()
}

/// A model is to slow what NVM slows and nothing else: it takes no memory and no second copy for what passes.
#[test]
fn a_model_waits_and_else_costs_nothing() {
    const BYTES: usize = 32 << 20;
    let timing = crate::Timing::new(Model::hinfs_with(50, 1_000_000_000));
    let slow = MapOptions::new().timing(timing.clone());
    let (slow, plain) = (slow.anonymous(BYTES), Map::anonymous(BYTES));
    let (slow, plain) = (slow.unwrap(), plain.unwrap());
    let source = Map::anonymous(BYTES).unwrap();
    let data = pattern(BYTES);
    source.store(0, &data);
    for map in [&slow, &plain] {
        map.populate().unwrap();
    }
    let half = BYTES / 2 + 77;
    type Act<'a> = (&'a str, usize, &'a dyn Fn(&Map) -> u32);
    let acts: [Act<'_>; 4] = [
        ("from", BYTES - 64, &|map| {
            map.copy_nt_from(&source, 9, 32, BYTES - 128);
            0
        }),
        ("with", BYTES, &|map| {
            map.copy_nt_with(0, &[&data[..half], &data[half..]]);
            0
        }),
        ("crc32c", BYTES - 64, &|map| {
            map.copy_nt_crc32c(64, &[&data[..half], &data[half..BYTES - 64]], 5)
        }),
        ("sealed", BYTES, &|map| {
            let state = std::cell::Cell::new(0);
            map.copy_nt_sealed(0, &[&data[..half], &data[half..BYTES - 70]], 5, |found| {
                state.set(found);
                [7; crate::LINE_WORDS]
            });
            state.get()
        }),
    ];
    for (name, touched, act) in acts {
        let (faulted, delayed, counted) = (faults(), timing.delayed_ns(), slow.counts());
        let sum = act(&slow);
        assert!(faults() - faulted < 8, "{name}: {}", faults() - faulted);
        let lines = (touched / crate::LINE_BYTES) as u64;
        assert_eq!(timing.delayed_ns() - delayed, 50 * lines, "{name}");
        let (counted, before) = (slow.counts() - counted, plain.counts());
        assert_eq!(act(&plain), sum, "{name}");
        assert_eq!(plain.counts() - before, counted, "{name}");
        let (mut found, mut expected) = (vec![0; BYTES], vec![0; BYTES]);
        slow.load(0, &mut found);
        plain.load(0, &mut expected);
        assert!(found == expected, "{name}");
    }
}
