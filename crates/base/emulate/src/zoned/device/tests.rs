use super::*;
use crate::UnitTimes;

const SMALL: Geometry = Geometry {
    units: 2,
    blocks_per_unit: 3,
    pages_per_block: 4,
    page_bytes: 512,
};

fn behaviour() -> Behaviour {
    Behaviour {
        cuts: true,
        ..Behaviour::default()
    }
}

fn at(block: u32, page: u32) -> PageAt {
    PageAt {
        block: SMALL.block(block),
        page,
    }
}

fn program(flash: &Zoned, page: PageAt, byte: u8) -> Result<(), BlockError> {
    flash.program(page, &[byte; 512], &[byte; OOB_BYTES], Purpose::Written)
}

fn read(flash: &Zoned, page: PageAt) -> Result<(u8, u8), BlockError> {
    let mut data = [0; 512];
    let oob = flash.read(page, &mut data)?;
    assert!(data.iter().all(|byte| *byte == data[0]));
    Ok((data[0], oob[0]))
}

#[test]
fn the_device_of_the_paper() {
    let geometry = Geometry::stagefs(128 << 30);
    assert_eq!(geometry.bytes(), 128 << 30);
    assert_eq!(geometry.block_bytes(), 2 << 20);
    assert_eq!((geometry.units, geometry.page_bytes), (16, 8_192));
    let page = geometry.page(geometry.pages() - 1);
    assert_eq!(geometry.page_number(page), geometry.pages() - 1);
    assert_eq!(geometry.unit(page.block), 15);
}

#[test]
fn pages_are_programmed_in_order_and_once() {
    let flash = Zoned::memory(SMALL, behaviour()).unwrap();
    assert_eq!(read(&flash, at(1, 0)).unwrap(), (0xff, 0xff), "erased");
    program(&flash, at(1, 0), 7).unwrap();
    let again = program(&flash, at(1, 0), 8).unwrap_err();
    let said = "erase block 1: page 0 cannot be programmed: expected page 1";
    assert_eq!(again.to_string(), said);
    program(&flash, at(1, 2), 8).unwrap_err();
    assert_eq!(read(&flash, at(1, 0)).unwrap(), (7, 7));
    (1..4).for_each(|page| program(&flash, at(1, page), 7).unwrap());
    program(&flash, at(1, 3), 7).unwrap_err();
    flash.erase(SMALL.block(1)).unwrap();
    assert_eq!(read(&flash, at(1, 3)).unwrap(), (0xff, 0xff));
    program(&flash, at(1, 0), 9).unwrap();
    let counts = flash.counts();
    assert_eq!((counts.out_of_order, counts.pages_programmed), (3, 5));
    assert_eq!((counts.blocks_erased, counts.pages_read), (1, 3));
    assert_eq!(flash.erase_count(SMALL.block(1)), 1);
}

#[test]
fn an_image_is_as_it_was_left() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("flash");
    let flash = Zoned::create(&path, SMALL, Behaviour::default()).unwrap();
    program(&flash, at(4, 0), 5).unwrap();
    flash.erase(SMALL.block(2)).unwrap();
    drop(flash);
    let flash = Zoned::open(&path, Behaviour::default()).unwrap();
    assert_eq!(flash.geometry(), SMALL);
    assert_eq!(read(&flash, at(4, 0)).unwrap(), (5, 5));
    assert_eq!(flash.next_page(SMALL.block(4)), 1);
    assert_eq!(flash.erase_count(SMALL.block(2)), 1);
    drop(flash);
    std::fs::write(&path, [0; 8_192]).unwrap();
    let error = Zoned::open(&path, Behaviour::default()).unwrap_err();
    assert!(error.to_string().contains("magic"), "{error}");
    std::fs::write(&path, [0; 8]).unwrap();
    Zoned::open(&path, Behaviour::default()).unwrap_err();
    let flash = Zoned::create(&path, SMALL, Behaviour::default()).unwrap();
    assert_eq!(read(&flash, at(4, 0)).unwrap(), (0xff, 0xff));
}

/// State of all pages, as a cut left it; and that of half erased blocks.
fn states(flash: &Zoned) -> Vec<String> {
    let pages = (0..SMALL.pages()).map(|number| match read(flash, SMALL.page(number)) {
        Ok((data, oob)) => format!("{data} {oob}"),
        Err(BlockError::TornPage { .. }) => "torn".to_owned(),
        Err(BlockError::HalfErased { .. }) => "half".to_owned(),
        Err(error) => panic!("{error}"),
    });
    pages.collect()
}

/// Page 0 of block 0 durable; then, under way: units 0 and 1 with four commands each.
fn cut(seed: u64) -> (Zoned, Vec<String>) {
    let flash = Zoned::memory(SMALL, behaviour()).unwrap();
    program(&flash, at(0, 0), 1).unwrap();
    flash.flush();
    for page in 0..3 {
        program(&flash, at(1, page), 10 + page as u8).unwrap();
    }
    program(&flash, at(0, 1), 2).unwrap();
    flash.erase(SMALL.block(0)).unwrap();
    program(&flash, at(0, 0), 3).unwrap();
    program(&flash, at(3, 0), 13).unwrap();
    flash.cut_power(seed).unwrap();
    let states = states(&flash);
    (flash, states)
}

#[test]
fn each_unit_has_done_a_prefix_when_power_is_cut() {
    let mut of_unit_0 = std::collections::BTreeSet::new();
    let mut of_unit_1 = std::collections::BTreeSet::new();
    for seed in 0..400 {
        let (flash, states) = cut(seed);
        assert_eq!(states, cut(seed).1, "a seed gives the same state");
        of_unit_0.insert([&states[0], &states[1]].map(String::clone));
        of_unit_1.insert([&states[4], &states[5], &states[6], &states[12]].map(String::clone));
        // Whatever it is, it can be gone on with.
        for number in 0..SMALL.blocks() {
            let block = SMALL.block(number);
            if flash.is_half_erased(block) {
                program(&flash, PageAt { block, page: 0 }, 1).unwrap_err();
                flash.erase(block).unwrap();
            }
            let page = flash.next_page(block);
            program(&flash, PageAt { block, page }, 77).unwrap();
        }
    }
    let own = |rows: &[[&str; 2]]| rows.iter().map(|row| row.map(str::to_owned)).collect();
    let expected: std::collections::BTreeSet<[String; 2]> = own(&[
        ["1 1", "255 255"],
        ["1 1", "torn"],
        ["1 1", "2 2"],
        ["half", "half"],
        ["255 255", "255 255"],
        ["torn", "255 255"],
        ["3 3", "255 255"],
    ]);
    assert_eq!(of_unit_0, expected);
    assert_eq!(
        of_unit_1.len(),
        9,
        "four commands: a prefix, and maybe one torn"
    );
}

#[test]
fn what_was_flushed_survives() {
    for seed in 0..50 {
        let flash = Zoned::memory(SMALL, behaviour()).unwrap();
        program(&flash, at(0, 0), 1).unwrap();
        program(&flash, at(3, 0), 2).unwrap();
        flash.flush();
        flash.cut_power(seed).unwrap();
        assert_eq!(read(&flash, at(0, 0)).unwrap(), (1, 1));
        assert_eq!(read(&flash, at(3, 0)).unwrap(), (2, 2));
    }
}

#[test]
fn time_is_that_of_the_busiest_unit() {
    let flash = Zoned::memory(SMALL, Behaviour::default()).unwrap();
    program(&flash, at(0, 0), 1).unwrap();
    program(&flash, at(1, 0), 1).unwrap();
    assert_eq!(flash.pace().now_ns(), 0, "taken into the queue");
    flash.flush();
    assert_eq!(flash.pace().now_ns(), UnitTimes::STAGEFS.program_ns);
}

#[test]
fn a_block_that_is_worn_out_is_read_and_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("flash");
    let flash = Zoned::create(&path, SMALL, behaviour()).unwrap();
    program(&flash, at(1, 0), 7).unwrap();
    flash.erase(SMALL.block(2)).unwrap();
    flash.wear_out(SMALL.block(1)).unwrap();
    flash.wear_out(SMALL.block(2)).unwrap();
    let stays = |flash: &Zoned| {
        for n in [1, 2] {
            let block = SMALL.block(n);
            let page = flash.next_page(block);
            let programmed = program(flash, PageAt { block, page }, 8).unwrap_err();
            assert!(programmed.is_worn_out(), "{programmed}");
            assert!(flash.erase(block).unwrap_err().is_worn_out());
            assert!(flash.is_worn(block));
        }
        program(flash, at(3, flash.next_page(SMALL.block(3))), 9).unwrap();
    };
    stays(&flash);
    flash.flush();
    assert_eq!(read(&flash, at(1, 0)).unwrap(), (7, 7));
    drop(flash);
    let flash = Zoned::open(&path, behaviour()).unwrap();
    stays(&flash);
    assert_eq!(read(&flash, at(1, 0)).unwrap(), (7, 7));
    assert_eq!(flash.counts().out_of_order, 0);
}

/// A power cut takes commands back, and wear not.
#[test]
fn what_is_worn_out_stays_so_when_power_is_cut() {
    for seed in 0..50 {
        let flash = Zoned::memory(SMALL, behaviour()).unwrap();
        let block = SMALL.block(0);
        program(&flash, at(0, 0), 1).unwrap();
        flash.erase(block).unwrap();
        program(&flash, at(0, 0), 2).unwrap();
        flash.wear_out(block).unwrap();
        flash.cut_power(seed).unwrap();
        assert!(flash.is_worn(block), "{seed}");
        assert!(flash.erase(block).unwrap_err().is_worn_out());
    }
}
