// Package publish puts device events into the topic of ETags: idempotent, each
// acknowledged by all in-sync replicas, in the partition of its device, in the
// order of the calls. It owns the producer and the form of the record; it does
// not know where an event comes from or whether it is worth sending.
//
//	New → Run: asking for the partition count ─→ ready ─→ closed
//	                └── Kafka away: again after a while
//
// Invariant: done(nil) means that the record is in Kafka. The record's own
// timestamp is the clock at the call, never the event's time (rule T2).
package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// Config says who publishes.
type Config struct {
	// Publisher and DataCenter go into headers; DataCenter may be empty.
	Publisher  string
	DataCenter string
	// Timeout is how long a record may wait for its acknowledgement.
	Timeout time.Duration
	// MaxBuffered records wait at once, at most.
	MaxBuffered int
}

// ErrNotReady is the error of a Publish while Kafka is not there.
var ErrNotReady = errors.New("no way to reach Kafka")

// ErrFull is the error of a Publish when too many records wait for Kafka.
var ErrFull = errors.New("too many events wait for Kafka")

// Publisher is the producer. Its methods may be called at once.
type Publisher struct {
	cfg   Config
	log   *slog.Logger
	etags topic.Topic
	cl    *kgo.Client
	// partitions is 0 until Kafka has said.
	partitions atomic.Int32
	// waiting is why it is 0.
	waiting atomic.Pointer[error]
	// failed is set from the first record that Kafka did not take in time, or
	// for which somebody waited in vain, to the next one that it did take.
	failed atomic.Bool
}

// New makes a publisher. It connects in Run.
func New(cfg Config, env lifecycle.Env) (*Publisher, error) {
	cl, err := kgo.NewClient(append(env.Kafka.Options(env.Net.Dial),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// Records go on their way at once; what comes while a request is under
		// way makes the next batch.
		kgo.ProducerLinger(0),
		// The bound is kept in Publish. Were it the client's, which refuses with
		// a callback, a caller's lock and the callback's could wait for another.
		kgo.MaxBufferedRecords(2*cfg.MaxBuffered),
		kgo.RecordDeliveryTimeout(cfg.Timeout),
		kgo.ProduceRequestTimeout(cfg.Timeout),
		kgo.RequestTimeoutOverhead(2*time.Second),
		kgo.RetryBackoffFn(backoff),
		kgo.MetadataMinAge(500*time.Millisecond),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make the producer: %w", err)
	}
	return &Publisher{cfg: cfg, log: env.Log, etags: topic.New(env.Kafka.TopicPrefix).ETags, cl: cl}, nil
}

// backoff is the wait before the n-th try: short, because callers wait.
func backoff(n int) time.Duration { return min(100*time.Millisecond<<min(n, 5), 2*time.Second) }

// Run finds out about the topic, then waits for ctx and closes the producer
// when every record is acknowledged or has timed out. It returns an error when
// the topic is not fit.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.close()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		n, err := p.ask(ctx)
		if err == nil {
			p.partitions.Store(n)
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		var unfit *kafka.UnfitError
		if errors.As(err, &unfit) {
			return fmt.Errorf("look at the topic of ETags: %w", err)
		}
		if p.waiting.Swap(&err) == nil {
			p.log.Warn("waiting for Kafka", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
	<-ctx.Done()
	return nil
}

// Discard ends a publisher that Run is never called on.
func (p *Publisher) Discard() { p.cl.Close() }

func (p *Publisher) ask(ctx context.Context) (int32, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	return kafka.Partitions(ctx, p.cl, []topic.Topic{p.etags})
}

func (p *Publisher) close() {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Timeout)
	defer cancel()
	if err := p.cl.Flush(ctx); err != nil {
		p.log.Warn("stopped with events that Kafka did not take", "records", p.cl.BufferedProduceRecords(), "err", err)
	}
	p.cl.Close()
}

// Ready is nil when Kafka takes records, by the last that was tried.
func (p *Publisher) Ready() error {
	if p.partitions.Load() == 0 {
		if err := p.waiting.Load(); err != nil {
			return fmt.Errorf("waiting for Kafka: %w", *err)
		}
		return errors.New("waiting for Kafka")
	}
	if p.failed.Load() {
		return errors.New("the last event was not taken by Kafka in time")
	}
	return nil
}

// Overdue says that a caller gave up waiting. The producer itself may keep a
// record for as long as it takes to learn what became of it.
func (p *Publisher) Overdue() { p.failed.Store(true) }

// Buffered is the number of records that wait for Kafka.
func (p *Publisher) Buffered() int64 { return p.cl.BufferedProduceRecords() }

// Record is an event on its way.
type Record struct {
	Event *eventv1.DeviceEvent
	// Key is the device's, Value the encoded event.
	Key   string
	Value []byte
	// TraceParent and TraceState are W3C's, empty for an event without a trace.
	TraceParent, TraceState string
}

// Publish sends a record and calls done, from another goroutine, when it is in
// Kafka or will not be. It never waits. An error means that it was not taken,
// and done is not called: ErrNotReady, ErrFull.
func (p *Publisher) Publish(r Record, done func(error)) error {
	n := p.partitions.Load()
	if n == 0 {
		return ErrNotReady
	}
	switch waiting := p.cl.BufferedProduceRecords(); {
	case waiting > 0 && p.failed.Load():
		// Some still wait for a Kafka that let others down: their success, or
		// that of the first after them, ends it. Callers learn of it at once.
		return ErrNotReady
	case waiting >= int64(p.cfg.MaxBuffered):
		return ErrFull
	}
	rec := &kgo.Record{
		Topic:     p.etags.Name,
		Partition: kafka.PartitionFor(r.Key, n),
		Key:       []byte(r.Key),
		Value:     r.Value,
		Headers:   p.headers(r),
	}
	p.cl.TryProduce(context.Background(), rec, func(_ *kgo.Record, err error) {
		p.failed.Store(err != nil)
		done(err)
	})
	return nil
}

func (p *Publisher) headers(r Record) []kgo.RecordHeader {
	h := make([]kgo.RecordHeader, 0, 6)
	h = append(h, kgo.RecordHeader{Key: kafka.HeaderType, Value: typeEvent})
	if ms, ok := codec.UnixMilli(r.Event.OccurTime); ok {
		h = append(h, kgo.RecordHeader{Key: kafka.HeaderOccurTime, Value: []byte(codec.FormatTime(ms))})
	}
	if p.cfg.DataCenter != "" {
		h = append(h, kgo.RecordHeader{Key: kafka.HeaderDataCenter, Value: []byte(p.cfg.DataCenter)})
	}
	h = append(h, kgo.RecordHeader{Key: kafka.HeaderPublisher, Value: []byte(p.cfg.Publisher)})
	if r.TraceParent != "" {
		h = append(h, kgo.RecordHeader{Key: kafka.HeaderTraceParent, Value: []byte(r.TraceParent)})
		if r.TraceState != "" {
			h = append(h, kgo.RecordHeader{Key: kafka.HeaderTraceState, Value: []byte(r.TraceState)})
		}
	}
	return h
}

var typeEvent = []byte(codec.TypeEvent)
