use proptest::prelude::*;

use super::*;

#[test]
fn who_wants_little_gets_it_and_the_others_share_the_rest() {
    assert_eq!(fair_shares(90, &[10, 100, 100]), [10, 40, 40]);
    assert_eq!(fair_shares(100, &[1_000]), [100]);
    assert_eq!(fair_shares(100, &[0, 0]), [50, 50], "nobody wants anything yet");
    assert_eq!(fair_shares(100, &[0, 1_000]), [2, 98], "the other one can still begin");
    assert_eq!(fair_shares(1, &[5, 5, 5]).iter().sum::<u64>(), 1);
    assert_eq!(fair_shares(5, &[]), [0; 0]);
}

proptest! {
    #[test]
    fn shares_are_the_limit_and_fair(
        limit in 0..100_000_u64,
        wanted in proptest::collection::vec(0..50_000_u64, 1..12),
    ) {
        let shares = fair_shares(limit, &wanted);
        let (sum, nodes) = (shares.iter().sum::<u64>(), wanted.len() as u64);
        prop_assert!(sum <= limit && limit - sum < nodes, "{shares:?}");
        let least = limit / (20 * nodes);
        for (share, wants) in shares.iter().zip(&wanted) {
            prop_assert!(*share >= least && *share >= (*wants).min(limit / nodes), "{shares:?}");
            // Whoever gets less than it wants has no less than the others, but for one that rounding gives them.
            let most = shares.iter().max().copied().unwrap_or_default();
            prop_assert!(share >= wants || share + 1 >= most, "{shares:?} of {limit} for {wanted:?}");
        }
    }

    #[test]
    fn a_budget_lets_through_its_rate_and_one_seconds_burst(
        rate in 1..5_000_u64,
        steps in proptest::collection::vec(0..400_u64, 1..200),
    ) {
        let (mut budget, mut now, mut taken) = (TurnBudget::new(rate * 1_000, 1_000), 1_000, 0);
        for step in steps {
            now += step;
            for _ in 0..40 {
                match budget.take(now) {
                    Ok(()) => taken += 1,
                    Err(wait) => {
                        let mut later = budget.clone();
                        prop_assert!(later.take(now + u64::from(wait)).is_ok(), "{budget:?}");
                        break;
                    }
                }
            }
            let allowed = rate + rate * (now - 1_000) / 1_000;
            prop_assert!(taken <= allowed, "{taken} of {allowed}");
        }
    }
}

#[test]
fn firings_are_taken_from_later_messages() {
    let mut budget = TurnBudget::new(10_000, 0);
    for _ in 0..15 {
        budget.charge(0);
    }
    assert_eq!(budget.take(0), Err(600));
    assert_eq!((budget.take(599), budget.take(600)), (Err(1), Ok(())));
    for _ in 0..1_000 {
        budget.charge(600);
    }
    assert!(budget.take(1_600).is_err());
    assert!(budget.take(1_700).is_ok(), "no more than a second's turns are owed");
}

#[test]
fn a_lower_rate_takes_effect_at_once() {
    let mut budget = TurnBudget::new(100_000, 0);
    budget.set_rate(2_000, 0);
    assert_eq!((budget.take(0), budget.take(0)), (Ok(()), Ok(())));
    assert_eq!(budget.take(0), Err(500));
    let mut nothing = TurnBudget::new(0, 0);
    assert!(nothing.take(0).is_err() && nothing.take(10_000).is_err());
}

#[test]
fn a_limit_below_the_number_of_nodes_starves_none() {
    for limit in [1, 2] {
        let shares = fair_shares(limit * 1_000, &[9_000; 3]);
        let taken = shares.iter().map(|share| {
            let mut budget = TurnBudget::new(*share, 0);
            (0..60_000).filter(|now| budget.take(*now).is_ok()).count()
        });
        let taken: Vec<_> = taken.collect();
        let each = limit as usize * 20;
        assert!(taken.iter().all(|it| (each..=each + 1).contains(it)), "{limit}: {taken:?}");
    }
}

#[test]
fn a_namespace_stays_full_until_all_is_counted() {
    let quotas = Quotas { entities: Some(10), state_bytes: Some(100), turns_per_second: None };
    let used = |entities, state_bytes| Usage { entities, state_bytes, turns_per_second: 0 };
    let nothing = Full::default();
    let full = Full { entities: Some(10), state_bytes: None };
    let (missing, all, twice) = (Ordering::Less, Ordering::Equal, Ordering::Greater);
    assert_eq!(Full::of(quotas, used(10, 99), all, nothing), full);
    assert_eq!(Full::of(quotas, used(10, 99), missing, nothing), full);
    assert_eq!(Full::of(quotas, used(3, 9), missing, full), full, "not all is counted yet");
    assert_eq!(Full::of(quotas, used(3, 9), all, full), nothing);
    assert_eq!(Full::of(quotas, used(10, 99), twice, nothing), nothing, "some count twice");
    assert_eq!(Full::of(quotas, used(3, 9), twice, full), full);
    let raised = Quotas { entities: Some(11), ..quotas };
    for counted in [missing, twice] {
        assert_eq!(Full::of(raised, used(3, 9), counted, full), nothing, "it may grow again");
        let lowered = Full::of(Quotas { entities: Some(9), ..quotas }, used(3, 9), counted, full);
        assert_eq!(lowered.entities, Some(9));
    }
    let unlimited = Quotas::default();
    assert_eq!(Full::of(unlimited, used(10, 99), missing, full), nothing, "the limit is gone");
}
