// Package follow reads whole topics, all partitions, without a group: what
// the console shows and what its settings are come from the log, so every
// console reads all of it.
//
// It hands records on in the order of their partition, one at a time, and
// knows how far it has come. It decides nothing and keeps no record.
//
// Invariant: only what is committed is handed on, and when [Follower.Await]
// returns, everything below the offsets it was given has been handled.
//
//	starting ──(ends known)──> catching up ──(read to them)──> ready
package follow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

// Source is one topic to read.
type Source struct {
	Topic string
	// Tail, above 0, reads only about the last so many records of each
	// partition: for logs that are long and whose beginning nobody asks for.
	Tail int64
	// Handle takes one record. It is never called at the same time as another
	// Handle of the same Follower.
	Handle func(*kgo.Record)
}

// Follower reads its sources until it is told to stop.
type Follower struct {
	env     lifecycle.Env
	sources map[string]Source
	ready   func()

	mu       sync.Mutex
	next     map[string]map[int32]int64 // by topic and partition, what is read next
	goal     map[string]map[int32]int64 // the ends when reading began; nil before they are known
	caughtUp bool
	moved    chan struct{} // closed and replaced whenever next moves
	waiting  string        // what keeps it from starting
}

// New is a follower of the sources; ready is called once, when it has read all
// that was there at the start.
func New(env lifecycle.Env, ready func(), sources ...Source) *Follower {
	f := &Follower{env: env, ready: ready, sources: map[string]Source{}, next: map[string]map[int32]int64{}, moved: make(chan struct{}), waiting: "has not asked Kafka yet"}
	for _, s := range sources {
		f.sources[s.Topic] = s
		f.next[s.Topic] = map[int32]int64{}
	}
	return f
}

const (
	retryFirst = 250 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Run reads until ctx ends. It waits for Kafka as long as that takes; topics
// that are missing are waited for too, because whoever makes them may be slow.
func (f *Follower) Run(ctx context.Context) error {
	cl, err := kgo.NewClient(append(f.env.Kafka.Options(f.env.Net.Dial),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// The last record of a partition may be a transaction's marker: without
		// seeing it one cannot know that the end is reached.
		kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(500*time.Millisecond),
	)...)
	if err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	defer cl.Close()

	wait := retryFirst
	for {
		err := f.begin(ctx, cl)
		if err == nil {
			break
		}
		f.mu.Lock()
		f.waiting = err.Error()
		f.mu.Unlock()
		f.env.Log.Warn("waiting for Kafka", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
			wait = min(2*wait, retryMost)
		}
	}
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			if !errors.Is(err, context.Canceled) {
				f.env.Log.Warn("follow", "topic", topic, "partition", partition, "err", err)
			}
		})
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) == 0 {
				return
			}
			handle := f.sources[p.Topic].Handle
			for _, rec := range p.Records {
				if !rec.Attrs.IsControl() {
					handle(rec)
				}
			}
			f.mu.Lock()
			f.next[p.Topic][p.Partition] = p.Records[len(p.Records)-1].Offset + 1
			f.mu.Unlock()
		})
		f.wake()
	}
}

// begin learns where each partition starts and ends, and tells the client to
// read from there.
func (f *Follower) begin(ctx context.Context, cl *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	adm := kadm.NewClient(cl)
	var topics []string
	for t := range f.sources {
		topics = append(topics, t)
	}
	starts, err := adm.ListStartOffsets(ctx, topics...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("ask where the topics start: %w", err)
	}
	ends, err := adm.ListCommittedOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("ask where the topics end: %w", err)
	}
	from := map[string]map[int32]kgo.Offset{}
	goal := map[string]map[int32]int64{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for topic, source := range f.sources {
		if len(ends[topic]) == 0 {
			return fmt.Errorf("topic %s does not exist: make it with 'tocsin topics create'", topic)
		}
		from[topic], goal[topic] = map[int32]kgo.Offset{}, map[int32]int64{}
		for p, end := range ends[topic] {
			start := starts[topic][p].Offset
			if source.Tail > 0 {
				start = max(start, end.Offset-source.Tail)
			}
			from[topic][p] = kgo.NewOffset().At(start)
			goal[topic][p] = end.Offset
			f.next[topic][p] = start
		}
	}
	f.goal = goal
	cl.AddConsumePartitions(from)
	f.wakeLocked()
	return nil
}

func (f *Follower) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeLocked()
}

func (f *Follower) wakeLocked() {
	if !f.caughtUp && f.goal != nil {
		f.caughtUp = true
		for topic, ends := range f.goal {
			f.caughtUp = f.caughtUp && f.reachedLocked(topic, ends)
		}
		if f.caughtUp {
			f.ready()
		}
	}
	close(f.moved)
	f.moved = make(chan struct{})
}

func (f *Follower) reachedLocked(topic string, ends map[int32]int64) bool {
	for p, end := range ends {
		if f.next[topic][p] < end {
			return false
		}
	}
	return true
}

// Ready is nil once everything was read that was there at the start.
func (f *Follower) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.goal == nil:
		return errors.New("waiting for Kafka: " + f.waiting)
	case !f.caughtUp:
		return errors.New("reading what is there")
	}
	return nil
}

// Await returns when everything of topic below ends has been handled.
func (f *Follower) Await(ctx context.Context, topic string, ends map[int32]int64) error {
	for {
		f.mu.Lock()
		reached, moved := f.goal != nil && f.reachedLocked(topic, ends), f.moved
		f.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("read %s to the end: %w", topic, ctx.Err())
		}
	}
}
