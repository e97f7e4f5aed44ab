// Package gateway is the service that tells people: it reads the notifications
// of the accounts whose partitions it owns, decides who is told, and has the
// mails sent, each outcome on record.
//
// It joins the machine of an account (internal/account), its partitions
// (internal/ledger), the settings (internal/settings), the mailer and what a
// mail says (internal/mailer, internal/render), and the partition runtime
// (services/internal/consume). It does not judge a device's state.
//
// Invariant: what it decides is a function of the log and the settings. What
// the relay did comes back as a fact in that log, and is no memory of a process:
//
//	notifications ──> ledger, account ──> account-state, outbox, deliveries
//	      ^                                   │ after the commit
//	      └── results, renewals ── mailer <───┘
//	                                  └──> relay
package gateway

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/gateway/internal/ledger"
	"github.com/tocsin/tocsin/services/gateway/internal/mailer"
	"github.com/tocsin/tocsin/services/gateway/internal/render"
	"github.com/tocsin/tocsin/services/gateway/internal/settings"
	"github.com/tocsin/tocsin/services/internal/consume"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"

	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
)

const scope = "github.com/tocsin/tocsin/services/gateway"

// How much of its notifications an account, and a partition, has decided on one
// tick. Ticks are at least 100 ms apart, so that a flood of one account delays
// the others of its partition by no more than the first bound's work.
const (
	accountDecisions = 500
	tickDecisions    = 5000
)

// Service is a gateway. It is a lifecycle.Service.
type Service struct {
	group  *consume.Group
	mailer *mailer.Mailer
	facts  *facts
}

// New makes a gateway that does nothing before Run.
func New(cfg Config, env lifecycle.Env) (*Service, error) {
	instance := cfg.Instance
	if instance == "" {
		var err error
		if instance, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("name this gateway (--gateway.instance): %w", err)
		}
	}
	domain, err := cfg.messageDomain()
	if err != nil {
		return nil, err
	}
	rules := account.Default()
	rules.MessageDomain = domain
	watch, err := newWatch(env.Log, env.Meter)
	if err != nil {
		return nil, err
	}
	s := &Service{}
	topics := topic.New(env.Kafka.TopicPrefix)
	if s.facts, err = newFacts(env, topics.Notifications.Name); err != nil {
		return nil, err
	}
	s.mailer, err = mailer.New(cfg.SMTP, mailer.Options{
		Log: env.Log, Tracer: env.Tracer, Meter: env.Meter, Dial: env.Net.Dialer,
		Facts:  s.facts,
		Render: content(render.Options{PublicURL: cfg.PublicURL}),
		Lease:  rules.Lease,
	})
	if err != nil {
		s.facts.close()
		return nil, fmt.Errorf("make the mailer: %w", err)
	}
	opts := ledger.Options{
		Topics: topics,
		Rules:  rules,
		Limits: ledger.Limits{
			AccountFlying: cfg.InFlightAccount, Flying: cfg.InFlight,
			AccountDecisions: accountDecisions, Decisions: tickDecisions,
		},
		Settings: func() ledger.Settings { return settings.New(env.Log) },
		Send: func(m *outboxv1.Mail, lease, expire time.Time) {
			s.mailer.Send(mailer.Attempt{Mail: m, LeaseUntil: lease, ExpireAt: expire})
		},
		Tracer:  env.Tracer.Tracer(scope),
		Observe: watch,
	}
	s.group, err = consume.New(consume.Config{
		Group:       cfg.Group,
		Instance:    instance,
		Members:     cfg.Members,
		Log:         topics.Notifications,
		State:       []topic.Topic{topics.AccountState, topics.Outbox},
		Settings:    []topic.Topic{topics.AccountSettings},
		Others:      []topic.Topic{topics.Deliveries},
		DeadLetters: topics.DeadLetters,
		Open: func(number, of int32) consume.Partition {
			s.facts.partitions.Store(of)
			return ledger.Open(opts, number, of)
		},
	}, env)
	if err != nil {
		s.facts.close()
		return nil, fmt.Errorf("make the gateway: %w", err)
	}
	return s, nil
}

// content is what the mailer sends, by package render.
func content(opt render.Options) func(*outboxv1.Mail) (mailer.Content, error) {
	return func(m *outboxv1.Mail) (mailer.Content, error) {
		r, err := render.Message(m, opt)
		return mailer.Content{Subject: r.Subject, Text: r.Text, HTML: r.HTML}, err
	}
}

// Run works until ctx ends. Then it begins no attempt, lets those under way
// come to their end (smtp.stop-timeout), and puts their results into the log.
func (s *Service) Run(ctx context.Context) error {
	defer s.facts.close()
	ctx, stop := context.WithCancel(ctx)
	var mailing sync.WaitGroup
	var mailErr error
	mailing.Go(func() {
		mailErr = s.mailer.Run(ctx)
		stop() // without a mailer there is nothing to be a gateway for
	})
	err := s.group.Run(ctx)
	stop()
	mailing.Wait()
	if err == nil {
		err = mailErr
	}
	return err
}

// Ready is nil when all owned partitions are restored. A relay that is away is
// no reason not to be: mails wait in the outbox.
func (s *Service) Ready() error { return s.group.Ready() }

// Live is nil: a member that can only be helped by a new one is made anew by
// the group, and what waits for Kafka or the relay is helped by no restart.
func (s *Service) Live() error { return nil }
