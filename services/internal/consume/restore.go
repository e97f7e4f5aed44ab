package consume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// restoreStall is how long a restore may read nothing although the end is
	// not reached, before it is begun anew.
	restoreStall = 20 * time.Second
	// stablePoll is the wait between two looks at a partition whose former
	// owner has a transaction open.
	stablePoll = 20 * time.Millisecond
)

// restore reads what the former owner left of o: first the group's stable
// offset (no transaction of the former owner is pending then), then the
// uncommitted ends of the state and settings topics, then these topics, read
// committed, up to there. It runs beside the loop and touches nothing but o.
func (m *member) restore(ctx context.Context, o *owned) error {
	committed, err := m.stableOffset(ctx, o.id)
	if err != nil {
		return fmt.Errorf("read the stable offset: %w", err)
	}
	state, settings := names(m.cfg.State), names(m.cfg.Settings)
	log := m.cfg.Log.Name
	spans, err := m.spans(ctx, o.id, append(append([]string{log}, state...), settings...))
	if err != nil {
		return err
	}
	prefix := []byte(m.cfg.KeyPrefix)
	for _, topic := range state {
		err := m.read(ctx, topic, o.id, spans[topic], func(rec *kgo.Record) error {
			key, ours := bytes.CutPrefix(rec.Key, prefix)
			switch {
			case !ours, bytes.Contains(key, []byte(prefixEnd)):
				return nil // another deployment's
			case string(key) == positionKey:
				return o.restorePosition(rec.Value)
			}
			rec.Key = key
			return o.Restore(rec)
		})
		if err != nil {
			return err
		}
	}
	for _, topic := range settings {
		o.settingsNext[topic] = spans[topic].end
		err := m.read(ctx, topic, o.id, spans[topic], func(rec *kgo.Record) error {
			if err := o.Setting(rec); err != nil {
				m.badSetting(rec, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	// A lost group offset repeats nothing: what was handled is in the state.
	o.next = max(o.next, committed)
	if end := spans[log].end; o.next > end {
		m.log.Error("the log is shorter than what was handled: it was cut or made anew, and what was in the lost part is not known; going on from its end",
			"topic", log, "partition", o.id, "offset", o.next, "end", end)
		o.next = end
	}
	o.end, o.backlog = spans[log].end, spans[log].end
	return nil
}

// stableOffset is the group's committed offset once no transaction may change
// it, or -1 when there is none.
func (m *member) stableOffset(ctx context.Context, partition int32) (int64, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	req.Group = m.cfg.Group
	rt := kmsg.NewOffsetFetchRequestTopic()
	rt.Topic, rt.Partitions = m.cfg.Log.Name, []int32{partition}
	req.Topics = append(req.Topics, rt)
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = m.cfg.Group
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic, gt.Partitions = rt.Topic, rt.Partitions
	rg.Topics = append(rg.Topics, gt)
	req.Groups = append(req.Groups, rg)
	for {
		offset, err := m.fetchOffset(ctx, req)
		if !errors.Is(err, kerr.UnstableOffsetCommit) {
			return offset, err
		}
		if err := wait(ctx, stablePoll); err != nil {
			return 0, err
		}
	}
}

func (m *member) fetchOffset(ctx context.Context, req *kmsg.OffsetFetchRequest) (int64, error) {
	resp, err := req.RequestWith(ctx, m.side)
	if err != nil {
		return 0, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, err
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return 0, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				return p.Offset, kerr.ErrorForCode(p.ErrorCode)
			}
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			return p.Offset, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return -1, nil
}

// span is what a topic's partition holds: offsets start to end, end excluded,
// what is not committed yet included.
type span struct{ start, end int64 }

func (m *member) spans(ctx context.Context, partition int32, topics []string) (map[string]span, error) {
	adm := kadm.NewClient(m.side)
	starts, err := adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list start offsets: %w", err)
	}
	ends, err := adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list end offsets: %w", err)
	}
	spans := map[string]span{}
	for _, t := range topics {
		start, ok1 := starts.Lookup(t, partition)
		end, ok2 := ends.Lookup(t, partition)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("topic %s has no partition %d", t, partition)
		}
		if err := errors.Join(start.Err, end.Err); err != nil {
			return nil, fmt.Errorf("list offsets of %s: %w", t, err)
		}
		spans[t] = span{start.Offset, end.Offset}
	}
	return spans, nil
}

// read gives fn the committed records of s in order. Control records are kept
// by the client, because one may be the last before the end.
func (m *member) read(ctx context.Context, topic string, partition int32, s span, fn func(*kgo.Record) error) error {
	if s.start >= s.end {
		return nil
	}
	cl, err := kgo.NewClient(append(m.env.Kafka.Options(m.env.Net.Dial),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(s.start)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(m.cfg.Timing.FetchWait),
	)...)
	if err != nil {
		return fmt.Errorf("read %s: %w", topic, err)
	}
	defer cl.Close()
	for next := s.start; next < s.end; {
		poll, cancel := context.WithTimeout(ctx, restoreStall)
		fetches := cl.PollFetches(poll)
		cancel()
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %s partition %d from offset %d to %d: %w", topic, partition, next, s.end, err)
		}
		for rec := range fetches.RecordsAll() {
			if rec.Offset >= s.end {
				return nil
			}
			next = rec.Offset + 1
			if rec.Attrs.IsControl() {
				continue
			}
			if err := fn(rec); err != nil {
				return fmt.Errorf("%s partition %d offset %d: %w", topic, partition, rec.Offset, err)
			}
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
