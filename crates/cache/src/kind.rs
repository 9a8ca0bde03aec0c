use terrane_format::block_ptr::Normal;

/// The two kinds of blocks that the cache tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Data = 0,
    Metadata = 1,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Data, Kind::Metadata];

    /// Metadata has two copies, data one.
    pub fn of(ptr: &Normal) -> Kind {
        if ptr.copies().nth(1).is_some() { Kind::Metadata } else { Kind::Data }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::Metadata => "metadata",
        }
    }
}
