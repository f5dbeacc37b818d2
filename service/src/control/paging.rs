//! Pages of lists.
//!
//! A token holds the key of the last item that was sent, so that a list which grows or shrinks between two pages neither
//! repeats nor skips what stayed.

use super::convert::invalid;
use super::error::Error;

const DEFAULT: u32 = 100;
const MOST: u32 = 1000;

/// One page of `items`, in the order of their keys, and the token of the next page (empty at the end). `list` names the
/// list, so that another list's token is refused.
pub fn page<T>(
    list: &str,
    mut items: Vec<T>,
    key: impl Fn(&T) -> String,
    size: u32,
    token: &str,
) -> Result<(Vec<T>, String), Error> {
    let size = if size == 0 { DEFAULT } else { size.min(MOST) } as usize;
    items.sort_by_cached_key(&key);
    if !token.is_empty() {
        let after = token.strip_prefix(list).and_then(|t| t.strip_prefix(':')).ok_or_else(|| {
            let message =
                format!("the page token '{token}' is none of this list; use the next_page_token of the page before");
            invalid("PAGE_TOKEN_MALFORMED", message)
        })?;
        items.retain(|item| key(item).as_str() > after);
    }
    let more = items.len() > size;
    items.truncate(size);
    let next = match items.last() {
        Some(last) if more => format!("{list}:{}", key(last)),
        _ => String::new(),
    };
    Ok((items, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_a_list_that_changes() {
        let key = |n: &u32| format!("{n:010}");
        let (first, token) = page("n", vec![30, 10, 20, 40], key, 2, "").expect("a page");
        assert_eq!(first, [10, 20]);
        // 20, the token's item, is gone; 5 came before it and 35 after it.
        let (second, token) = page("n", vec![5, 10, 30, 35, 40], key, 2, &token).expect("a page");
        assert_eq!(second, [30, 35]);
        let (third, token) = page("n", vec![5, 10, 30, 35, 40], key, 2, &token).expect("a page");
        assert_eq!((third.as_slice(), token.as_str()), ([40].as_slice(), ""));
        assert!(page("m", vec![1], key, 2, "n:1").is_err());
        assert_eq!(page("n", (0..2000).collect(), key, 0, "").expect("a page").0.len(), 100);
        assert_eq!(page("n", (0..2000).collect(), key, 5000, "").expect("a page").0.len(), 1000);
    }
}
