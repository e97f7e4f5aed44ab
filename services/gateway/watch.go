package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/gateway/internal/ledger"
)

// watch is how one sees from outside what the gateway does: metrics (contract:
// Metrics) and one line per notification. It is told what was committed, by
// all members' loops. No label and no line at Info has an address or a subject.
type watch struct {
	log *slog.Logger

	alertDelay, mailDelay, stageDelay metric.Float64Histogram
	outcomes, ignored                 metric.Int64Counter

	mu   sync.Mutex
	held map[int32]ledger.Held
}

// Delays are from milliseconds to a day: what is deliberate is in them too.
var delayBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 100, 300, 600, 900, 3600, 21600, 86400}

func newWatch(log *slog.Logger, provider metric.MeterProvider) (*watch, error) {
	meter := provider.Meter(scope)
	w := &watch{log: log, held: map[int32]ledger.Held{}}
	var err error
	try := func(e error) {
		if err == nil && e != nil {
			err = fmt.Errorf("make the gateway's metrics: %w", e)
		}
	}
	histogram := func(h *metric.Float64Histogram, name, description string) {
		var e error
		*h, e = meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(delayBuckets...))
		try(e)
	}
	counter := func(c *metric.Int64Counter, name, description string) {
		var e error
		*c, e = meter.Int64Counter(name, metric.WithDescription(description))
		try(e)
	}
	gauge := func(name, description string, value func(ledger.Held) int) {
		_, e := meter.Int64ObservableGauge(name, metric.WithDescription(description),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(w.sum(value))
				return nil
			}))
		try(e)
	}
	histogram(&w.alertDelay, "tocsin_alert_delay_seconds", "From the occur time of a notification to the gateway's decision, with and without the deliberate hold.")
	histogram(&w.mailDelay, "tocsin_mail_delay_seconds", "From the occur time of a notification to the relay's 250, with and without the deliberate hold.")
	histogram(&w.stageDelay, "tocsin_stage_delay_seconds", "How long a stage held what is due, deliberate holds left out.")
	counter(&w.outcomes, "tocsin_outcomes_total", "What became of notifications for their recipients, and of attempts to send, by type.")
	counter(&w.ignored, "tocsin_gateway_ignored_total", "Records of the log that changed nothing, by reason.")
	gauge("tocsin_gateway_accounts", "Accounts of which something is kept, in the partitions owned here.", func(h ledger.Held) int { return h.Accounts })
	gauge("tocsin_gateway_mails", "Mails decided and not settled, in the partitions owned here.", func(h ledger.Held) int { return h.Mails })
	gauge("tocsin_gateway_mails_in_flight", "Attempts under way, in the partitions owned here.", func(h ledger.Held) int { return h.Flying })
	return w, err
}

func label(key, value string) attribute.KeyValue { return attribute.String(key, value) }

// delays records a delay with and without the deliberate hold.
func delays(ctx context.Context, h metric.Float64Histogram, t account.Type, delay, withoutHold time.Duration) {
	h.Record(ctx, delay.Seconds(), metric.WithAttributes(label("type", t.String()), label("held", "included")))
	h.Record(ctx, withoutHold.Seconds(), metric.WithAttributes(label("type", t.String()), label("held", "excluded")))
}

// Decided implements ledger.Observer.
func (w *watch) Decided(id string, d *account.Decided, span trace.SpanContext) {
	ctx := trace.ContextWithSpanContext(context.Background(), span) // for exemplars
	n := d.Notification
	mailed := 0
	for _, o := range d.Outcomes {
		if o.Reason == account.Mailed {
			mailed = len(o.Users)
		}
		count := max(1, len(o.Users)) // none: the account's outcome
		w.outcomes.Add(ctx, int64(count), metric.WithAttributes(label("outcome", o.Reason.String()), label("type", n.Type.String())))
	}
	delay, withoutHold := ledger.AlertDelay(d)
	line := []any{
		"notifType", n.Type.String(), "alertDelay", delay.Seconds(), "alertDelayWithoutHold", withoutHold.Seconds(),
		"account_id", id, "device_id", n.Device, "notification_id", n.ID, "mailed", mailed,
	}
	if span.HasTraceID() {
		line = append(line, "trace_id", span.TraceID().String())
	}
	if d.Further {
		// The delay was measured when the notification was first decided.
		w.log.Info("recovery decided for recipients that were awaited", line...)
		return
	}
	w.log.Info("notification decided", line...)
	delays(ctx, w.alertDelay, n.Type, delay, withoutHold)
	w.stageDelay.Record(ctx, max(0, d.At.Sub(d.Read)).Seconds(), metric.WithAttributes(label("stage", "gateway")))
}

// Attempted implements ledger.Observer.
func (w *watch) Attempted(id string, a *account.Attempted) {
	ctx := context.Background()
	m := a.Mail
	w.outcomes.Add(ctx, 1, metric.WithAttributes(label("outcome", a.Reason.String()), label("type", m.Type.String())))
	if delay, withoutHold, ok := ledger.MailDelay(a); ok {
		delays(ctx, w.mailDelay, m.Type, delay, withoutHold)
		w.stageDelay.Record(ctx, max(0, a.Result.End.Sub(m.Date)).Seconds(), metric.WithAttributes(label("stage", "relay")))
	}
	level := slog.LevelDebug
	switch a.Reason {
	case account.Rejected, account.Uncertain, account.Expired:
		level = slog.LevelWarn
	}
	w.log.Log(ctx, level, "mail", "outcome", a.Reason.String(), "settled", a.Settled, "attempt", a.Attempt,
		"notifType", m.Type.String(), "account_id", id, "mail_id", m.ID)
}

// Ignored implements ledger.Observer.
func (w *watch) Ignored(why account.Ignored) {
	w.ignored.Add(context.Background(), 1, metric.WithAttributes(label("reason", string(why))))
}

// Holds implements ledger.Observer.
func (w *watch) Holds(partition int32, held ledger.Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[partition] = held
}

// Closed implements ledger.Observer.
func (w *watch) Closed(partition int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, partition)
}

func (w *watch) sum(value func(ledger.Held) int) (sum int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		sum += int64(value(h))
	}
	return sum
}
