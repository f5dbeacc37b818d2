//! Buffer memory: numbered regions of exactly the length that was lent, so that an access outside of one panics, and the
//! parity kernel on it (the scalar reference).

use raid_core::action::{BufAddr, Seg, Step, Term};
use raid_core::gf;

/// All regions. A region that is not lent has no bytes.
#[derive(Default)]
pub struct Memory {
    regions: Vec<Vec<u8>>,
    free: Vec<u16>,
}

impl Memory {
    /// Lends a region of `len` bytes, filled with `junk`.
    pub fn alloc(&mut self, len: usize, junk: u8) -> u16 {
        let region = self.free.pop().unwrap_or_else(|| {
            self.regions.push(Vec::new());
            (self.regions.len() - 1) as u16
        });
        self.regions[region as usize].clear();
        self.regions[region as usize].resize(len, junk);
        region
    }

    /// Takes a region back. Whoever still uses it panics.
    pub fn free(&mut self, region: u16) {
        self.regions[region as usize].clear();
        self.free.push(region);
    }

    /// The bytes of a region.
    pub fn region(&self, region: u16) -> &[u8] {
        &self.regions[region as usize]
    }

    /// The bytes of a region, to fill.
    pub fn region_mut(&mut self, region: u16) -> &mut [u8] {
        &mut self.regions[region as usize]
    }

    fn slice(&self, addr: BufAddr, len: u32) -> &[u8] {
        let at = addr.offset() as usize;
        &self.regions[addr.region() as usize][at..at + len as usize]
    }

    fn slice_mut(&mut self, addr: BufAddr, len: u32) -> &mut [u8] {
        let at = addr.offset() as usize;
        &mut self.regions[addr.region() as usize][at..at + len as usize]
    }

    /// The bytes of a gather list.
    pub fn gather(&self, segs: &[Seg]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(segs.iter().map(|s| s.len as usize).sum());
        segs.iter().for_each(|s| bytes.extend_from_slice(self.slice(s.addr, s.len)));
        bytes
    }

    /// Spreads bytes over a gather list, from `skip` bytes of the list on.
    pub fn scatter(&mut self, segs: &[Seg], mut skip: usize, mut bytes: &[u8]) {
        for seg in segs {
            let len = seg.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let n = (len - skip).min(bytes.len());
            self.slice_mut(seg.addr.plus(skip as u64), n as u32).copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            skip = 0;
            if bytes.is_empty() {
                return;
            }
        }
    }

    fn load(&self, addr: BufAddr, len: u32) -> Vec<u8> {
        if addr == BufAddr::ZERO { vec![0; len as usize] } else { self.slice(addr, len).to_vec() }
    }

    /// Runs a step. False if a compare step found a difference.
    pub fn execute(&mut self, step: &Step, terms: &[Term]) -> bool {
        match *step {
            Step::Copy { dst, src, len } => {
                let bytes = self.load(src, len);
                self.slice_mut(dst, len).copy_from_slice(&bytes);
            }
            Step::Compare { a, b, len } => return self.load(a, len) == self.load(b, len),
            Step::Combine { len, dst, outputs, accumulate, .. } => {
                let sources: Vec<Vec<u8>> = terms.iter().map(|t| self.load(t.src, len)).collect();
                for (j, &dst) in dst.iter().enumerate().take(outputs as usize) {
                    let list: Vec<(u8, &[u8])> =
                        terms.iter().zip(&sources).map(|(t, s)| (t.coef[j], s.as_slice())).collect();
                    gf::combine_scalar(self.slice_mut(dst, len), &list, accumulate);
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raid_core::action::Slice;

    #[test]
    fn a_gather_list_and_a_combination_move_the_right_bytes() {
        let mut m = Memory::default();
        let (a, b) = (m.alloc(16, 1), m.alloc(16, 2));
        let segs = [Seg { addr: BufAddr::new(a, 4), len: 4 }, Seg { addr: BufAddr::new(b, 0), len: 8 }];
        m.scatter(&segs, 2, &[9; 6]);
        assert_eq!(m.region(a), [1, 1, 1, 1, 1, 1, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(m.gather(&segs), [1, 1, 9, 9, 9, 9, 9, 9, 2, 2, 2, 2]);
        let dst = [BufAddr::new(a, 0), BufAddr::new(a, 8)];
        let step = Step::Combine { len: 4, dst, outputs: 2, accumulate: true, terms: Slice::default() };
        let terms = [Term { src: BufAddr::new(b, 8), coef: [1, 2] }, Term { src: BufAddr::ZERO, coef: [5, 5] }];
        assert!(m.execute(&step, &terms));
        assert_eq!(m.region(a), [3, 3, 3, 3, 1, 1, 9, 9, 5, 5, 5, 5, 1, 1, 1, 1]);
        assert!(!m.execute(&Step::Compare { a: dst[0], b: BufAddr::ZERO, len: 4 }, &[]));
    }
}
