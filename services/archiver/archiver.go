// Package archiver turns what devices and their systems say into ETags: it
// takes requests over HTTP, reads each source's own form, and answers when
// Kafka has it all. It sends a status only on change where it alone speaks for
// the device, and every one it knows again now and then (rule L1).
//
// It does not judge what is worth telling, and it keeps nothing on disk: what
// it did not acknowledge is still the caller's.
//
//	          ┌ keys   ┌ feeds            ┌ recent, known
//	ingest ───┴────────┴──── intake ──────┴──── publish ──→ tocsin.etags
//	                           ↑ restate, beacon
//
// Invariant: an event that was answered with 202 is in Kafka, acknowledged by
// all in-sync replicas: itself, or for a status not sent on, one that says the
// same and is the newest of the device.
package archiver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/tocsin/tocsin/services/archiver/internal/beacon"
	"github.com/tocsin/tocsin/services/archiver/internal/ingest"
	"github.com/tocsin/tocsin/services/archiver/internal/keys"
	"github.com/tocsin/tocsin/services/archiver/internal/publish"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

// Service is an archiver.
type Service struct {
	cfg       Config
	env       lifecycle.Env
	log       *slog.Logger
	publisher *publish.Publisher
	intake    *intake
	handler   *ingest.Handler
}

var _ lifecycle.Service = (*Service)(nil)

// New makes an archiver; it listens and connects in Run.
func New(cfg Config, env lifecycle.Env) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var allowed *keys.Keys
	if cfg.APIKeysFile != "" {
		var err error
		if allowed, err = keys.Open(cfg.APIKeysFile); err != nil {
			return nil, fmt.Errorf("ingest.api-keys-file: %w", err)
		}
	}
	m, err := newMetrics(env.Meter)
	if err != nil {
		return nil, err
	}
	publisher, err := publish.New(publish.Config{
		Publisher: cfg.id(), DataCenter: cfg.DataCenter,
		Timeout: cfg.AckTimeout, MaxBuffered: cfg.MaxBuffered,
	}, env)
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, env: env, log: env.Log, publisher: publisher}
	s.intake = newIntake(cfg, publisher, env.Tracer, m)
	s.handler = ingest.New(ingest.Config{MaxBodyBytes: cfg.MaxBodyBytes, MaxRequests: cfg.MaxRequests},
		allowed.Scope, &door{intake: s.intake, maxEvents: cfg.MaxEvents})
	if err := m.watch(s.intake.devices, publisher.Buffered); err != nil {
		publisher.Discard()
		return nil, err
	}
	return s, nil
}

// Ready is nil when Kafka takes events.
func (s *Service) Ready() error { return s.publisher.Ready() }

// Live is nil: nothing here is helped by a restart.
func (s *Service) Live() error { return nil }

// Run serves until ctx ends. It stops from the front to the back: no new
// requests, those under way answered, the last heartbeat, the producer.
func (s *Service) Run(ctx context.Context) error {
	ln, err := s.cfg.Listen.Listen(s.env.Net.Listener)
	if err != nil {
		return fmt.Errorf("take events: %w", err)
	}
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      time.Minute + s.cfg.AckTimeout + 10*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 2)
	fail := func(err error) {
		if err != nil {
			failed <- err
		}
	}
	var front, middle, back sync.WaitGroup
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
	closed, closeProducer := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer closeProducer()

	back.Go(func() { fail(s.publisher.Run(closed)) })
	middle.Go(func() { s.intake.restate(stopped) })
	if s.cfg.Beacon {
		middle.Go(func() { beacon.Run(stopped, s.cfg.id(), s.intake.send) })
	}
	front.Go(func() {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("take events: %w", err))
		}
	})
	s.log.Info("archiver takes events", "address", ln.Addr().String(), "archiver", s.cfg.id())

	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.AckTimeout+time.Second)
	defer cancel()
	if shutdown := server.Shutdown(grace); shutdown != nil {
		s.log.Warn("stopped with requests under way", "err", shutdown)
		// What is cut here was not acknowledged.
		_ = server.Close()
	}
	front.Wait()
	stop()
	middle.Wait()
	closeProducer()
	back.Wait()
	return err
}
