package archiver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/archiver/internal/feeds"
	"github.com/tocsin/tocsin/services/archiver/internal/ingest"
	"github.com/tocsin/tocsin/services/archiver/internal/known"
	"github.com/tocsin/tocsin/services/archiver/internal/publish"
	"github.com/tocsin/tocsin/services/archiver/internal/recent"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// intake decides what becomes of each event between the door and Kafka, and is
// the one place where what an archiver remembers is read and written.
//
// Events of a device are handed to the producer in the order in which they
// were stepped, under mu; nothing under it waits.
type intake struct {
	publisher *publish.Publisher
	timeout   time.Duration
	tracer    trace.Tracer
	metrics   *metrics
	// run begins the ids of events that come without one.
	run string

	mu     sync.Mutex
	known  *known.Table
	recent *recent.Window
	events uint64
}

func newIntake(cfg Config, p *publish.Publisher, tracer trace.TracerProvider, m *metrics) *intake {
	every := cfg.Refresh
	if cfg.Mode == modeHeartbeat {
		every = heartbeatEvery
	}
	var random [4]byte
	// It never fails; see crypto/rand.
	_, _ = rand.Read(random[:])
	return &intake{
		publisher: p,
		timeout:   cfg.AckTimeout,
		tracer:    tracer.Tracer("github.com/tocsin/tocsin/services/archiver"),
		metrics:   m,
		run:       "a" + hex.EncodeToString(random[:]) + "-",
		known: known.New(known.Config{
			Most:  cfg.KnownDevices,
			Slots: int(every / restateStep),
			Drop:  cfg.Affinity && cfg.Mode == modeChange,
		}),
		recent: recent.New(cfg.DuplicateWindow),
	}
}

// batch collects the acknowledgements of one request.
type batch struct {
	mu      sync.Mutex
	waiting int
	err     error
	done    chan struct{}
	// seen are the events of the request itself: what it repeats shares the
	// fate of what it repeats.
	seen recent.Set
}

func newBatch() *batch { return &batch{waiting: 1, done: make(chan struct{}), seen: recent.Set{}} }

func (b *batch) add() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting++
}

// finish counts one acknowledgement, or the end of the sending itself.
func (b *batch) finish(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	if b.waiting--; b.waiting == 0 {
		close(b.done)
	}
}

// take makes the events of items safe: the error is ingest.ErrAway or ErrBusy,
// wrapped, and then none counts. Items with an Err are not touched.
func (in *intake) take(ctx context.Context, items []feeds.Item) (accepted, duplicate int, err error) {
	b := newBatch()
	now := time.Now()
	for i := range items {
		if items[i].Err != nil {
			continue
		}
		var repeated bool
		if repeated, err = in.one(ctx, b, items[i], now); err != nil {
			break
		}
		if repeated {
			duplicate++
		} else {
			accepted++
		}
	}
	b.finish(err)
	if err != nil {
		return 0, 0, refusal(err)
	}
	timeout := time.NewTimer(in.timeout)
	defer timeout.Stop()
	select {
	case <-b.done:
	case <-timeout.C:
		in.publisher.Overdue()
		return 0, 0, fmt.Errorf("%w within %v", ingest.ErrAway, in.timeout)
	case <-ctx.Done():
		// The caller left and will not read what we say.
		return 0, 0, fmt.Errorf("%w before the caller left", ingest.ErrAway)
	}
	if b.err != nil {
		return 0, 0, refusal(b.err)
	}
	return accepted, duplicate, nil
}

// refusal is the door's word for the publisher's error.
func refusal(err error) error {
	switch {
	case errors.Is(err, publish.ErrFull):
		return fmt.Errorf("%w: %w", ingest.ErrBusy, err)
	case errors.Is(err, publish.ErrNotReady):
		return ingest.ErrAway
	}
	return fmt.Errorf("%w: %w", ingest.ErrAway, err)
}

// one takes one event. The error is the publisher's.
func (in *intake) one(ctx context.Context, b *batch, item feeds.Item, now time.Time) (repeated bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	ev := item.Event
	key := codec.DeviceKey(ev.AccountId, ev.DeviceId)
	value, err := codec.EncodeEvent(ev)
	if err != nil {
		return false, err
	}
	var mark recent.Mark
	named := ev.EventId != ""
	if named {
		if mark = in.recent.Mark(key, ev.EventId, value); b.seen.Has(mark) || in.recent.Has(mark) {
			in.metrics.duplicate()
			return true, nil
		}
		b.seen.Add(mark)
	}
	changed := in.complete(ev, key, item.Fold)
	if changed {
		if value, err = codec.EncodeEvent(ev); err != nil {
			return false, err
		}
	}
	var verdict known.Verdict
	if ev.GetStatus() != nil {
		if verdict = in.known.Step(key, ev, now); verdict.Drop {
			in.metrics.unchanged()
			return false, nil
		}
	}
	rec := publish.Record{Event: ev, Key: key, Value: value}
	var span trace.Span
	if verdict.Changed || ev.GetMotion().GetPhase() == eventv1.Motion_START {
		_, span = in.tracer.Start(ctx, "publish etag", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes(ev)...))
		rec.TraceParent, rec.TraceState = codec.FormatTrace(span.SpanContext())
	}
	b.add()
	err = in.publisher.Publish(rec, func(err error) {
		if err == nil {
			in.mu.Lock()
			if named {
				in.recent.Add(mark)
			}
			if verdict.Version != 0 {
				in.known.Sent(key, verdict.Version, value, now)
			}
			in.mu.Unlock()
		}
		in.metrics.published(ev, now, err)
		end(span, err)
		b.finish(err)
	})
	if err != nil {
		end(span, err)
		b.finish(err)
	}
	return false, err
}

// complete fills in what only the archiver can say of an event: an id where
// its source gives none, and the status that its code makes of the last one
// known (rule S2).
func (in *intake) complete(ev *eventv1.DeviceEvent, key string, fold feeds.Fold) (changed bool) {
	if ev.EventId == "" {
		in.events++
		ev.EventId = in.run + strconv.FormatUint(in.events, 36)
		changed = true
	}
	if fold != (feeds.Fold{}) {
		if status, ok := in.known.Fold(key, fold.Set, fold.Clear, fold.Alone); ok {
			ev.Kind = &eventv1.DeviceEvent_Status{Status: status}
			changed = true
		}
	}
	return changed
}

// restateStep is the time between two parts of the slow refresh.
const restateStep = time.Second

// restate sends the statuses known again until ctx ends, each once in a round,
// spread out (rule L1). A device's place in the round is that of its key, and
// the round's beginning that of the clock, so both outlast a restart.
func (in *intake) restate(ctx context.Context) {
	tick := time.NewTicker(restateStep)
	defer tick.Stop()
	last := stepOf(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// After a pause, one round at most.
		now := stepOf(time.Now())
		slots := int64(in.known.Slots())
		for step := max(last+1, now-slots+1); step <= now; step++ {
			in.restateSlot(int(step % slots))
		}
		last = now
	}
}

func stepOf(t time.Time) int64 { return t.UnixMilli() / restateStep.Milliseconds() }

// restateSlot sends one part. While Kafka is away, or busy with what is new,
// it is left out: the next round is near.
func (in *intake) restateSlot(slot int) {
	if in.publisher.Ready() != nil {
		return
	}
	in.mu.Lock()
	again := in.known.Restate(slot)
	in.mu.Unlock()
	for _, r := range again {
		in.send(r.Event)
	}
}

// send publishes an event of the archiver's own; nobody waits for it.
func (in *intake) send(ev *eventv1.DeviceEvent) {
	now := time.Now()
	if ev.EventId == "" {
		in.mu.Lock()
		in.events++
		ev.EventId = in.run + strconv.FormatUint(in.events, 36)
		in.mu.Unlock()
	}
	value, err := codec.EncodeEvent(ev)
	if err == nil {
		err = in.publisher.Publish(publish.Record{Event: ev, Key: codec.DeviceKey(ev.AccountId, ev.DeviceId), Value: value},
			func(err error) { in.metrics.published(ev, now, err) })
	}
	if err != nil && !errors.Is(err, publish.ErrNotReady) {
		in.metrics.published(ev, now, err)
	}
}

// devices is the number of devices known.
func (in *intake) devices() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return int64(in.known.Len())
}
