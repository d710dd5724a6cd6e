//! Statistics of interleaved rounds. Pure.

/// The middle of `values`, between the two middle ones if their number is even; `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(sorted[middle - 1], upper)) }
}

/// The median of the ratios of two things measured in the same rounds. What changes on the machine from round to round changes
/// both, and leaves their ratio.
pub fn ratio_of_rounds(measured: &[f64], base: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = measured.iter().zip(base).map(|(measured, base)| measured / base).collect();
    median(&ratios).filter(|ratio| ratio.is_finite())
}

/// The order in which a round measures `ways` things: forth in even rounds and back in odd ones, so that none is always the
/// one that comes after another.
pub fn order(round: usize, ways: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..ways).collect() } else { (0..ways).rev().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 100.0]), Some(3.5));
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        // The machine was four times slower in the second round, for both.
        assert_eq!(ratio_of_rounds(&[2.0, 8.0, 2.0], &[1.0, 4.0, 1.0]), Some(2.0));
        // One disturbed round counts for nothing.
        assert_eq!(ratio_of_rounds(&[2.0, 90.0, 2.0], &[1.0, 1.0, 1.0]), Some(2.0));
        assert_eq!(ratio_of_rounds(&[1.0], &[0.0]), None);
        assert_eq!(ratio_of_rounds(&[], &[]), None);
    }

    #[test]
    fn rounds_alternate() {
        assert_eq!([order(0, 3), order(1, 3), order(2, 3)], [vec![0, 1, 2], vec![2, 1, 0], vec![0, 1, 2]]);
    }
}
