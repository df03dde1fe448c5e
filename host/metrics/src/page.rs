//! Writes one metric after the other.

use std::fmt;

use ostraca_stats::Distribution;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// A label: its name and its value.
pub(crate) type Label<'a> = (&'static str, &'a str);

/// A metric's name and the text that explains it. A counter's name gets `_total` appended, a unit's is in `unit`.
#[derive(Clone, Copy)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) unit: Option<&'static str>,
}

/// A metric without a unit: a number of things.
pub(crate) const fn number(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, unit: None }
}

/// A metric in seconds.
pub(crate) const fn seconds(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, unit: Some("seconds") }
}

/// A metric in bytes.
pub(crate) const fn bytes(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, unit: Some("bytes") }
}

/// The metrics that are being written.
pub(crate) struct Page<'a>(DescriptorEncoder<'a>);

impl<'a> Page<'a> {
    pub(crate) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    fn begin(
        &mut self,
        metric: Metric,
        kind: MetricType,
        write: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let unit = metric.unit.map(|unit| match unit {
            "seconds" => Unit::Seconds,
            _ => Unit::Bytes,
        });
        write(self.0.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?)
    }

    /// A figure that only rises while the node runs.
    pub(crate) fn counter(
        &mut self,
        metric: Metric,
        value: impl EncodeCounterValue,
    ) -> fmt::Result {
        self.begin(metric, MetricType::Counter, |mut encoder| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// A figure that rises and falls.
    pub(crate) fn gauge(&mut self, metric: Metric, value: impl EncodeGaugeValue) -> fmt::Result {
        self.begin(metric, MetricType::Gauge, |mut encoder| encoder.encode_gauge(&value))
    }

    /// Constant facts, as labels.
    pub(crate) fn info(&mut self, metric: Metric, labels: &[Label<'_>]) -> fmt::Result {
        self.begin(metric, MetricType::Info, |mut encoder| encoder.encode_info(&labels))
    }

    /// A distribution.
    pub(crate) fn histogram(&mut self, metric: Metric, seen: &Distribution) -> fmt::Result {
        self.begin(metric, MetricType::Histogram, |encoder| write_histogram(encoder, seen))
    }

    /// Counters with labels.
    pub(crate) fn counters<L: EncodeLabelSet>(
        &mut self,
        metric: Metric,
        all: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.begin(metric, MetricType::Counter, |mut encoder| {
            all.into_iter().try_for_each(|(labels, value)| {
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
            })
        })
    }

    /// Gauges with labels.
    pub(crate) fn gauges<L: EncodeLabelSet>(
        &mut self,
        metric: Metric,
        all: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.begin(metric, MetricType::Gauge, |mut encoder| {
            all.into_iter().try_for_each(|(labels, value)| {
                encoder.encode_family(&labels)?.encode_gauge(&value)
            })
        })
    }

    /// Distributions with labels.
    pub(crate) fn histograms<L: EncodeLabelSet>(
        &mut self,
        metric: Metric,
        all: impl IntoIterator<Item = (L, Distribution)>,
    ) -> fmt::Result {
        self.begin(metric, MetricType::Histogram, |mut encoder| {
            all.into_iter().try_for_each(|(labels, seen)| {
                write_histogram(encoder.encode_family(&labels)?, &seen)
            })
        })
    }
}

fn write_histogram(mut encoder: MetricEncoder<'_>, seen: &Distribution) -> fmt::Result {
    // Nobody has counted yet: a histogram of one bucket, as the format wants it.
    let none = [(f64::INFINITY, 0)];
    let buckets = if seen.buckets.is_empty() { &none[..] } else { &seen.buckets };
    encoder.encode_histogram::<NoLabelSet>(seen.sum, seen.count, buckets, None)
}
