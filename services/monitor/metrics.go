package monitor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tocsin/tocsin/services/monitor/internal/device"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

// metrics are the monitor's (contract: Metrics). Labels are closed sets: no
// device, no account. It is told by all members' loops.
type metrics struct {
	interrupts, stale, corrected, notifications metric.Int64Counter
	delay                                       metric.Float64Histogram

	kinds  [4]metric.MeasurementOption
	why    [device.Reasons]metric.MeasurementOption
	stream metric.MeasurementOption
	own    metric.MeasurementOption

	mu    sync.Mutex
	sizes map[int32]size
}

// size is how much an owned partition has.
type size struct{ devices, holds int }

func newMetrics(provider metric.MeterProvider, expectedRate float64) (*metrics, error) {
	meter := provider.Meter(scope)
	m := &metrics{sizes: map[int32]size{}}
	label := func(key, value string) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
	}
	for i, kind := range [...]string{"status", "motion", "heartbeat", "other"} {
		m.kinds[i] = label("kind", kind)
	}
	for why := range device.Reasons {
		m.why[why] = label("reason", why.String())
	}
	m.stream, m.own = label("stage", "stream"), label("stage", "monitor")

	var err error
	// try makes one instrument after another until one fails.
	try := func(instrument func() error) {
		if err == nil {
			err = instrument()
		}
	}
	counter := func(c *metric.Int64Counter, name, description string) {
		try(func() (err error) {
			*c, err = meter.Int64Counter(name, metric.WithDescription(description))
			return err
		})
	}
	gauge := func(name, description string, value func(size) float64) {
		try(func() error {
			_, err := meter.Float64ObservableGauge(name, metric.WithDescription(description),
				metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
					o.Observe(m.sum(value))
					return nil
				}))
			return err
		})
	}
	counter(&m.interrupts, "tocsin_monitor_interrupts_total", "ETags handled, by kind.")
	counter(&m.stale, "tocsin_monitor_stale_total", "ETags that changed nothing, by reason (rules S1, O2, M1, M2).")
	counter(&m.corrected, "tocsin_monitor_time_corrected_total", "ETags whose time was not believed (rule T2).")
	counter(&m.notifications, "tocsin_monitor_notifications_total", "Notifications, by type and stage.")
	gauge("tocsin_monitor_interrupts_expected", "ETags a minute that the devices here should send, by --monitor.expected-rate.",
		func(s size) float64 { return float64(s.devices) * expectedRate })
	gauge("tocsin_monitor_devices", "Devices known in the partitions owned here.",
		func(s size) float64 { return float64(s.devices) })
	gauge("tocsin_monitor_holds", "Holds pending in the partitions owned here.",
		func(s size) float64 { return float64(s.holds) })
	try(func() (err error) {
		m.delay, err = meter.Float64Histogram("tocsin_stage_delay_seconds",
			metric.WithUnit("s"),
			metric.WithDescription("How long a stage held what is due, deliberate holds left out."),
			metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the monitor's metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) sum(value func(size) float64) (sum float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sizes {
		sum += value(s)
	}
	return sum
}

// Committed implements partition.Observer.
func (m *metrics) Committed(number int32, begun time.Time, c *partition.Counts, told []partition.Notification, devices, holds int) {
	m.mu.Lock()
	m.sizes[number] = size{devices, holds}
	m.mu.Unlock()

	ctx := context.Background()
	for i, n := range [...]uint64{c.Statuses, c.MotionSteps, c.Heartbeats, c.Others} {
		if n > 0 {
			m.interrupts.Add(ctx, int64(n), m.kinds[i])
		}
	}
	for why, n := range c.Reasons {
		switch {
		case n == 0:
		case device.Reason(why) == device.TimeCorrected:
			m.corrected.Add(ctx, int64(n))
		default:
			m.stale.Add(ctx, int64(n), m.why[why])
		}
	}
	now := time.Now()
	for i := range told {
		n := &told[i]
		m.notifications.Add(ctx, 1, metric.WithAttributes(
			attribute.String("type", n.Type.String()), attribute.String("stage", n.Stage.String())))
		if n.Stage == device.Due {
			// Clocks of two machines may differ: never below 0.
			m.delay.Record(ctx, max(0, begun.Sub(time.UnixMilli(n.Decide)).Seconds()), m.stream)
			m.delay.Record(ctx, now.Sub(begun).Seconds(), m.own)
		}
	}
}

// Closed implements partition.Observer.
func (m *metrics) Closed(number int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sizes, number)
}
