//! A tree in memory that does what the records say, one after the other.

use super::world::{DIR, FILE, LINK, World, content};
use shale_format::inode::Inode;
use shale_format::{DirKey, Ino};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub nlink: u32,
    pub data: Vec<u8>,
    pub names: BTreeMap<String, u64>,
    pub parent: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        self.mode == DIR
    }
    pub fn kind(&self) -> u8 {
        (self.mode >> 12) as u8
    }
}

/// Inodes by number; those without a name wait to be freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree(pub BTreeMap<u64, Node>);

impl Tree {
    pub fn new() -> Self {
        let root = Node {
            mode: DIR,
            nlink: 2,
            parent: 1,
            ..Node::default()
        };
        Tree([(1, root)].into())
    }

    pub fn at(&mut self, ino: u64) -> &mut Node {
        self.0.get_mut(&ino).unwrap()
    }

    pub fn create(&mut self, dir: u64, ino: u64, name: &str, mode: u32, target: &str) {
        let node = Node {
            mode,
            nlink: if mode == DIR { 2 } else { 1 },
            data: if mode == LINK { target.into() } else { vec![] },
            parent: if mode == DIR { dir } else { 0 },
            ..Node::default()
        };
        self.0.insert(ino, node);
        self.enter(dir, name, ino);
    }

    fn enter(&mut self, dir: u64, name: &str, ino: u64) {
        self.at(dir).names.insert(name.into(), ino);
        if self.at(ino).is_dir() {
            self.at(dir).nlink += 1;
            self.at(ino).parent = dir;
        }
    }

    fn leave(&mut self, dir: u64, name: &str) -> u64 {
        let ino = self.at(dir).names.remove(name).unwrap();
        if self.at(ino).is_dir() {
            self.at(dir).nlink -= 1;
        }
        ino
    }

    pub fn link(&mut self, dir: u64, name: &str, ino: u64) {
        self.at(ino).nlink += 1;
        self.enter(dir, name, ino);
    }

    pub fn unlink(&mut self, dir: u64, name: &str, free_now: bool) {
        let ino = self.leave(dir, name);
        let node = self.at(ino);
        node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
        if node.nlink == 0 && free_now {
            self.0.remove(&ino);
        }
    }

    pub fn rename(&mut self, from: (u64, &str), to: (u64, &str), free_now: bool) {
        if self.at(to.0).names.contains_key(to.1) {
            self.unlink(to.0, to.1, free_now);
        }
        let ino = self.leave(from.0, from.1);
        self.enter(to.0, to.1, ino);
    }

    pub fn exchange(&mut self, a: (u64, &str), b: (u64, &str)) {
        let (x, y) = (self.leave(a.0, a.1), self.leave(b.0, b.1));
        self.enter(a.0, a.1, y);
        self.enter(b.0, b.1, x);
    }

    pub fn write(&mut self, ino: u64, offset: usize, bytes: &[u8]) {
        let data = &mut self.at(ino).data;
        let end = offset + bytes.len();
        data.resize(data.len().max(end), 0);
        data[offset..end].copy_from_slice(bytes);
    }

    /// Whether `dir` is `top` or below it.
    pub fn below(&mut self, mut dir: u64, top: u64) -> bool {
        while dir != top && dir != 1 {
            dir = self.at(dir).parent;
        }
        dir == top
    }
}

/// What the volume of a world holds, as a tree, and the inodes behind it with what may
/// differ between equal trees left out.
pub fn dump(w: &World) -> (Tree, Vec<Inode>) {
    let view = w.view();
    let mut tree = Tree(BTreeMap::new());
    let mut inodes = Vec::new();
    let mut todo = vec![1];
    todo.extend(w.names(2).values());
    while let Some(ino) = todo.pop() {
        if tree.0.contains_key(&ino) {
            continue;
        }
        let inode = view.inode(Ino(ino)).unwrap().unwrap();
        assert_eq!(
            inode.flags & 1 == 1,
            inode.nlink == 0,
            "orphan flag of {ino}"
        );
        let mut node = Node {
            mode: inode.mode,
            nlink: inode.nlink,
            parent: if ino == 1 { 1 } else { inode.parent },
            xattrs: view.xattrs(&inode).unwrap(),
            ..Node::default()
        };
        if inode.is_dir() {
            view.entries(&inode, DirKey(0), &mut |e| {
                todo.push(e.ino.0);
                node.names
                    .insert(String::from_utf8(e.name).unwrap(), e.ino.0);
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(node.names.len() as u64, inode.size);
        } else {
            node.data = content(&view, &inode);
        }
        tree.0.insert(ino, node);
        inodes.push(Inode {
            root: Inode::free().root,
            blocks: 0,
            xattr_addr: 0,
            txid: 0,
            heat: 0,
            crc: 0,
            reserved: [0; 36],
            ..inode
        });
    }
    inodes.sort_by_key(|i| i.ino);
    (tree, inodes)
}

/// The permission bits that files, directories and links of the model are made with.
pub const MODES: [u32; 3] = [FILE, DIR, LINK];
