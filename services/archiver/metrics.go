package archiver

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// metrics are the archiver's. No label names a device or an account.
type metrics struct {
	byKind     map[string]metric.AddOption
	archiver   metric.RecordOption
	events     metric.Int64Counter
	failures   metric.Int64Counter
	rejections metric.Int64Counter
	duplicates metric.Int64Counter
	repeats    metric.Int64Counter
	delay      metric.Float64Histogram
	meter      metric.Meter
}

// Kinds of events, for the metric.
const (
	kindStatus    = "status"
	kindMotion    = "motion"
	kindHeartbeat = "heartbeat"
	kindRestated  = "restated"
	kindOther     = "other"
)

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	meter := mp.Meter("github.com/tocsin/tocsin/services/archiver")
	m := &metrics{
		meter:    meter,
		byKind:   map[string]metric.AddOption{},
		archiver: metric.WithAttributeSet(attribute.NewSet(attribute.String("stage", "archiver"))),
	}
	for _, kind := range []string{kindStatus, kindMotion, kindHeartbeat, kindRestated, kindOther} {
		m.byKind[kind] = metric.WithAttributeSet(attribute.NewSet(attribute.String("kind", kind)))
	}
	var err error
	for _, c := range []struct {
		counter     *metric.Int64Counter
		name, about string
	}{
		{&m.events, "tocsin_archiver_events_total", "Events that Kafka acknowledged, by kind."},
		{&m.failures, "tocsin_archiver_failures_total", "Events that Kafka did not take."},
		{&m.rejections, "tocsin_archiver_rejected_total", "Items of requests that were refused, by the field that is wrong."},
		{&m.duplicates, "tocsin_archiver_duplicates_total", "Events that had been taken before."},
		{&m.repeats, "tocsin_archiver_unchanged_total", "Statuses not sent because they say what Kafka has."},
	} {
		if *c.counter, err = meter.Int64Counter(c.name, metric.WithDescription(c.about)); err != nil {
			return nil, fmt.Errorf("make metrics: %w", err)
		}
	}
	m.delay, err = meter.Float64Histogram("tocsin_stage_delay_seconds",
		metric.WithDescription("Time that an event spent in a stage; archiver: from its occurrence, or its receipt where it has no time, to Kafka's acknowledgement."),
		metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600))
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	return m, nil
}

// watch adds what is read when somebody asks.
func (m *metrics) watch(knownDevices, buffered func() int64) error {
	for _, g := range []struct {
		name, about string
		value       func() int64
	}{
		{"tocsin_archiver_known_devices", "Devices whose last status is remembered.", knownDevices},
		{"tocsin_archiver_buffered_events", "Events that wait for Kafka.", buffered},
	} {
		_, err := m.meter.Int64ObservableGauge(g.name, metric.WithDescription(g.about),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(g.value())
				return nil
			}))
		if err != nil {
			return fmt.Errorf("make metrics: %w", err)
		}
	}
	return nil
}

func (m *metrics) rejected(reason string) {
	m.rejections.Add(context.Background(), 1, metric.WithAttributes(attribute.String("reason", reason)))
}

func (m *metrics) duplicate() { m.duplicates.Add(context.Background(), 1) }
func (m *metrics) unchanged() { m.repeats.Add(context.Background(), 1) }

// unbelievable is the age from which an occur time is not believed (rule T2).
const unbelievable = 7 * 24 * time.Hour

// published counts an event that was received at received and is now in Kafka,
// or is not.
func (m *metrics) published(ev *eventv1.DeviceEvent, received time.Time, err error) {
	ctx := context.Background()
	if err != nil {
		m.failures.Add(ctx, 1)
		return
	}
	m.events.Add(ctx, 1, m.byKind[kindOf(ev)])
	if ev.Restated || ev.Spooled {
		return
	}
	since := received
	if ms, ok := codec.UnixMilli(ev.OccurTime); ok && !ev.TimeCorrected {
		// A time that nobody believes (rule T2) is no measure.
		if at := time.UnixMilli(ms); at.Before(received) && received.Sub(at) < unbelievable {
			since = at
		}
	}
	m.delay.Record(ctx, time.Since(since).Seconds(), m.archiver)
}

func kindOf(ev *eventv1.DeviceEvent) string {
	switch {
	case ev.Restated:
		return kindRestated
	case ev.GetStatus() != nil:
		return kindStatus
	case ev.GetMotion() != nil:
		return kindMotion
	case ev.GetHeartbeat() != nil:
		return kindHeartbeat
	}
	return kindOther
}

// attributes are what a span says of the event.
func attributes(ev *eventv1.DeviceEvent) []attribute.KeyValue {
	a := []attribute.KeyValue{
		attribute.String("tocsin.etag.event_id", ev.EventId),
		attribute.String("tocsin.account_id", ev.AccountId),
		attribute.String("tocsin.device_id", ev.DeviceId),
		attribute.String("tocsin.etag.kind", kindOf(ev)),
	}
	if ms, ok := codec.UnixMilli(ev.OccurTime); ok {
		a = append(a, attribute.String("tocsin.etag.occur_time", codec.FormatTime(ms)))
	}
	if ev.Code != "" {
		a = append(a, attribute.String("tocsin.etag.code", ev.Code))
	}
	return a
}

// end ends a span, if there is one.
func end(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, "Kafka did not take it")
	}
	span.End()
}
