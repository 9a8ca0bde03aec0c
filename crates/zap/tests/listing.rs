//! Listings, and the memory that they keep.

use terrane_zap::{Cursor, KeyRef, MemStore, PreparedIndex, Store, Zap, ZapOptions};

fn listed(zap: &Zap, store: &MemStore, from: Cursor, max: usize) -> (Vec<Vec<u8>>, Cursor, bool) {
    let (mut names, mut after) = (Vec::new(), from);
    let is_last = zap
        .visit(store, from, &mut |entry| {
            let KeyRef::Name(name) = entry.key else { panic!("{:?} is no name", entry.key) };
            names.push(name.to_vec());
            after = entry.after;
            names.len() < max
        })
        .unwrap();
    (names, after, is_last)
}

fn filled(names: u64) -> (MemStore, Zap) {
    let mut store = MemStore::new();
    let mut zap = Zap::create(&mut store, ZapOptions::new(0x1234_5679)).unwrap();
    for n in 0..names {
        zap.add(&mut store, &format!("name-{n}"), &[n]).unwrap();
    }
    (store, zap)
}

#[test]
fn pieces_of_a_listing_make_the_whole() {
    for count in [0, 1, 40, 5000] {
        let (store, zap) = filled(count);
        let mut names = Vec::new();
        let mut from = Cursor::START;
        loop {
            let (some, after, is_last) = listed(&zap, &store, from, 7);
            assert!(is_last || some.len() == 7);
            names.extend(some);
            from = after;
            if is_last {
                break;
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len() as u64, count);
        assert_eq!(listed(&zap, &store, Cursor::END, 7), (vec![], Cursor::END, true));
    }
}

#[test]
fn an_index_that_only_listings_used_is_forgotten_with_them() {
    let (store, _) = filled(1800);
    let mut zap = Zap::open(&store).unwrap();
    assert_eq!(listed(&zap, &store, Cursor::START, 100).0.len(), 100);
    assert!(zap.index_bytes() >= 1800 * 8, "kept while a listing goes on");
    zap.end_listing();
    assert_eq!(zap.index_bytes(), 0);

    for n in 0..100 {
        assert_eq!(zap.lookup_u64(&store, &format!("name-{n}")), Ok(Some(n)));
    }
    listed(&zap, &store, Cursor::START, 100);
    zap.end_listing();
    assert!(zap.index_bytes() >= 1800 * 8, "lookups use it");
}

#[test]
fn a_prepared_index_is_taken_only_for_the_block_it_was_made_of() {
    let (mut store, _) = filled(1800);
    let mut zap = Zap::open(&store).unwrap();
    let plain = listed(&zap, &store, Cursor::START, 10_000);
    let prepare = |store: &MemStore| PreparedIndex::of(&store.read(0).unwrap(), store.block_count()).unwrap();

    zap.drop_state();
    let prepared = prepare(&store);
    assert_eq!(zap.adopt(&store, prepared), Ok(true));
    assert!(zap.index_bytes() >= 1800 * 8);
    assert_eq!(listed(&zap, &store, Cursor::START, 10_000), plain);
    zap.end_listing();
    assert_eq!(zap.index_bytes(), 0);

    let prepared = prepare(&store);
    zap.remove(&mut store, "name-7").unwrap();
    zap.drop_state();
    assert_eq!(zap.adopt(&store, prepared), Ok(false), "a name has gone");
    assert_eq!(zap.index_bytes(), 0);

    let fat = filled(5000).0;
    assert!(PreparedIndex::of(&fat.read(0).unwrap(), fat.block_count()).is_none());
}
