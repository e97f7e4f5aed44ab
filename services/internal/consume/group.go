package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"
)

const (
	// againFirst and againMost bound the wait before a member is made anew, or
	// Kafka is asked again.
	againFirst = 200 * time.Millisecond
	againMost  = 5 * time.Second
)

// Group is this process's members of one consumer group.
type Group struct {
	cfg     Config
	env     lifecycle.Env
	metrics *metrics

	mu      sync.Mutex
	members []*member // nil where one is being made
	down    string    // why there are no members
}

// New checks cfg and touches nothing.
func New(cfg Config, env lifecycle.Env) (*Group, error) {
	if cfg.Members == 0 {
		cfg.Members = 1
	}
	cfg.Timing = cfg.Timing.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	metrics, err := newMetrics(env.Meter, cfg.Log.Name)
	if err != nil {
		return nil, err
	}
	return &Group{cfg: cfg, env: env, metrics: metrics, members: make([]*member, cfg.Members), down: "waiting for Kafka"}, nil
}

// Run waits for Kafka, checks the topics and works until ctx ends. It returns
// an error only for topics that are not fit (*kafka.UnfitError).
func (g *Group) Run(ctx context.Context) error {
	partitions, err := g.awaitTopics(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	var members sync.WaitGroup
	for n := range g.members {
		members.Go(func() { g.keep(ctx, n, partitions) })
	}
	members.Wait()
	return nil
}

// counts are the partitions of the log, and of all that is partitioned with it,
// and of the dead letters.
type counts struct{ log, deadLetters int32 }

// awaitTopics returns the partition counts once Kafka answers.
func (g *Group) awaitTopics(ctx context.Context) (counts, error) {
	cl, err := kgo.NewClient(g.env.Kafka.Options(g.env.Net.Dial)...)
	if err != nil {
		return counts{}, fmt.Errorf("make a client: %w", err)
	}
	defer cl.Close()
	topics := append([]topic.Topic{g.cfg.Log}, g.cfg.State...)
	topics = append(append(topics, g.cfg.Settings...), g.cfg.Others...)
	for pause := againFirst; ; pause = min(2*pause, againMost) {
		ask, cancel := context.WithTimeout(ctx, againMost)
		var n counts
		if n.log, err = kafka.Partitions(ask, cl, topics); err == nil {
			n.deadLetters, err = kafka.Partitions(ask, cl, []topic.Topic{g.cfg.DeadLetters})
		}
		cancel()
		var unfit *kafka.UnfitError
		switch {
		case err == nil, errors.As(err, &unfit):
			return n, err
		case ctx.Err() != nil:
			return counts{}, nil
		}
		g.env.Log.Warn("kafka does not answer yet", "group", g.cfg.Group, "brokers", g.env.Kafka.Brokers, "err", err)
		g.setDown(fmt.Sprintf("kafka does not answer: %v", err))
		if wait(ctx, pause) != nil {
			return counts{}, nil
		}
	}
}

// keep runs one member after another.
func (g *Group) keep(ctx context.Context, n int, partitions counts) {
	for pause := againFirst; ctx.Err() == nil; pause = min(2*pause, againMost) {
		begun := time.Now()
		m, err := newMember(g.cfg, g.env, n, partitions, g.metrics)
		if err == nil {
			g.set(n, m)
			err = m.run(ctx)
			g.set(n, nil)
			g.metrics.lag(m.id, nil)
		}
		if err == nil {
			continue
		}
		if time.Since(begun) > time.Minute {
			pause = againFirst
		}
		g.env.Log.Error("a member ended and is made anew", "group", g.cfg.Group, "member", n, "err", err)
		g.setDown(err.Error())
		_ = wait(ctx, pause) // an end of ctx ends the loop
	}
}

func (g *Group) set(n int, m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members[n] = m
}

func (g *Group) setDown(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = why
}

// Ready is nil when every member is in the group and has restored what it owns.
func (g *Group) Ready() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, m := range g.members {
		if m == nil {
			return fmt.Errorf("group %s member %d: %s", g.cfg.Group, n, g.down)
		}
		if why := m.status.Load(); why != nil {
			return fmt.Errorf("group %s member %d: %s", g.cfg.Group, n, *why)
		}
	}
	return nil
}
