//! Percentiles of what was measured.

/// The value that `percent` of the samples do not exceed (nearest rank); 0 of none. `sorted` must ascend.
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).or(sorted.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn the_nearest_rank_counts() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(
            (percentile(&hundred, 50), percentile(&hundred, 99), percentile(&hundred, 100)),
            (50, 99, 100)
        );
        assert_eq!((percentile(&[7], 50), percentile(&[7], 99), percentile(&[7], 0)), (7, 7, 7));
        assert_eq!((percentile(&[1, 2, 3], 50), percentile(&[1, 2, 3, 4], 50)), (2, 2));
        assert_eq!(percentile(&[], 50), 0);
    }
}
