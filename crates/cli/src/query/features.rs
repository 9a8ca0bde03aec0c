//! Features of a pool: their states, and how they change.

use crate::check;
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use crate::progress::Progress;
use serde::Serialize;
use std::collections::BTreeMap;
use terrane_format::features::{FEATURES, Feature, FeatureRow, FeatureState, UseTracking};

/// What the names of all features begin with; users may leave it out.
const PREFIX: &str = "org.terrane:";

#[derive(Serialize)]
pub struct FeatureList {
    name: String,
    features: Vec<FeatureEntry>,
}

#[derive(Serialize)]
struct FeatureEntry {
    name: String,
    state: &'static str,
    /// `None`: unknown.
    uses: Option<u64>,
    #[serde(rename = "use")]
    use_noun: Option<&'static str>,
    meaning: &'static str,
}

/// Counts uses, enables and disables features, then lists all.
pub fn change_and_list(
    open_pool: &OpenPool,
    (enable, disable): (&[String], &[String]),
    count: bool,
    progress: Progress<'_>,
) -> Outcome<FeatureList> {
    let pool = &open_pool.pool;
    let (enable, disable) = (parse_all(enable)?, parse_all(disable)?);
    // Only a walk can tell that an active feature has no use, unless its uses are counted.
    let needs_walk = |feature: &Feature| {
        let is_active = pool.feature_state(*feature) == FeatureState::Active;
        let is_used = pool.uses(*feature).is_some_and(|uses| uses > 0);
        is_active && !is_used && feature.row().tracking != UseTracking::WhenEnabled
    };
    let mut found = BTreeMap::new();
    if count || disable.iter().any(needs_walk) {
        let (start, uses) = check::count_uses(open_pool, progress)?;
        let busy = pool.end_use_walk(&start, &uses)?;
        if let Some(feature) = busy.iter().find(|feature| count || disable.contains(feature)) {
            let name = feature.row().name;
            let pool = pool.name();
            return Err(Failure(format!(
                "pool {pool}, feature {name}: used while its uses were counted; try again"
            )));
        }
        found = uses;
    }
    if !enable.is_empty() {
        pool.enable(&enable)?;
    }
    if !disable.is_empty() {
        pool.disable(&disable, &found)?;
    }
    let features = pool.label().features;
    let unknown = |name: &&String| Feature::from_name(name).is_none();
    let of_others = features.compatible.iter().filter(unknown).map(|name| FeatureEntry {
        name: name.clone(),
        state: FeatureState::Enabled.name(),
        uses: None,
        use_noun: None,
        meaning: "of another version, which this one may ignore",
    });
    let entry = |row: &FeatureRow| {
        let state = features.state(row.feature);
        FeatureEntry {
            name: row.name.to_owned(),
            state: state.name(),
            uses: match state {
                FeatureState::Active => pool.uses(row.feature).or(found.get(&row.feature).copied()),
                FeatureState::Enabled | FeatureState::Disabled => Some(0),
            },
            use_noun: Some(row.use_noun),
            meaning: row.meaning,
        }
    };
    Ok(FeatureList { name: pool.name(), features: FEATURES.iter().map(entry).chain(of_others).collect() })
}

fn parse_all(names: &[String]) -> Outcome<Vec<Feature>> {
    let parse = |name: &String| {
        let found = Feature::from_name(name).or_else(|| Feature::from_name(&format!("{PREFIX}{name}")));
        let hint = "`terrane pool upgrade --features` lists those that this version knows";
        found.ok_or_else(|| Failure(format!("feature {name:?}: unknown; {hint}")))
    };
    names.iter().map(parse).collect()
}
