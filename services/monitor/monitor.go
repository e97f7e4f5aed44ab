// Package monitor is the service that watches devices: it reads the ETags of
// the partitions that it owns, runs one state machine per device, and tells the
// gateway what is worth telling, each thing once.
//
// It joins the machine (internal/device), its partitions (internal/partition)
// and the partition runtime (services/internal/consume); with the replay it
// gives the same machines a file to read. It knows no users, addresses or mail.
//
// Invariant: what it tells is a function of the log and the settings, be it
// live, after a crash, or in a replay.
package monitor

import (
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/consume"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

const scope = "github.com/tocsin/tocsin/services/monitor"

// Service is a monitor. It is a lifecycle.Service.
type Service struct {
	group *consume.Group
}

// New makes a monitor that does nothing before Run.
func New(cfg Config, env lifecycle.Env) (*Service, error) {
	instance := cfg.Instance
	if instance == "" {
		var err error
		if instance, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("name this monitor (--monitor.instance): %w", err)
		}
	}
	topics := topic.New(env.Kafka.TopicPrefix)
	metrics, err := newMetrics(env.Meter, cfg.ExpectedRate)
	if err != nil {
		return nil, err
	}
	opts := partition.Options{
		Topics:   topics,
		Defaults: cfg.Hold.rules(),
		Tracer:   env.Tracer.Tracer(scope),
		Observe:  metrics,
	}
	consuming := consume.Config{
		Group:       cfg.Group,
		Instance:    instance,
		Members:     cfg.Members,
		Log:         topics.ETags,
		State:       []topic.Topic{topics.DeviceState},
		Settings:    []topic.Topic{topics.DeviceSettings},
		Others:      []topic.Topic{topics.Notifications},
		DeadLetters: topics.DeadLetters,
		Open: func(number, of int32) consume.Partition {
			return partition.Open(opts, number, of)
		},
	}
	if dc := cfg.DataCenter; dc != "" {
		// Two filtered deployments on one cluster share nothing.
		consuming.Group += "-" + dc
		consuming.KeyPrefix = dc + "!"
		consuming.Skip = func(rec *kgo.Record) bool { return !stampedBy(rec, dc) }
	}
	group, err := consume.New(consuming, env)
	if err != nil {
		return nil, fmt.Errorf("make the monitor: %w", err)
	}
	return &Service{group: group}, nil
}

// stampedBy tells whether the record's archiver works in that data centre.
func stampedBy(rec *kgo.Record, dataCenter string) bool {
	for i := range rec.Headers {
		if rec.Headers[i].Key == kafka.HeaderDataCenter {
			return string(rec.Headers[i].Value) == dataCenter
		}
	}
	return false
}

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.group.Run(ctx) }

// Ready is nil when all owned partitions are restored.
func (s *Service) Ready() error { return s.group.Ready() }

// Live is nil: the runtime makes a member that ended anew by itself.
func (s *Service) Live() error { return nil }
