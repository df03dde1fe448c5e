//! What each strategy must do, rule by rule.
