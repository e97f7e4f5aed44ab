package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/telemetry"
)

// StopTimeout is how long services may take to stop before the process ends
// without them. It is above what a consumer group and a mail under way need.
const StopTimeout = 30 * time.Second

// Settings are what every process of ours can be told, beside the settings of
// the services in it.
type Settings struct {
	Log   telemetry.LogConfig `embed:"" prefix:"log."`
	Kafka kafka.Config        `embed:"" prefix:"kafka."`
	// Net is the network; tests put a virtual one here.
	Net Network `kong:"-"`
}

// Group is the services of one process while they are put together and run.
//
//	Run ─ build: Serve, Go, Defer ─ running ─ ctx ended, or one failed ─ stopping: all
//	stop ─ torn down, last in first out: admin ports, telemetry, what Defer was given
type Group struct {
	// Log is the process's logger.
	Log *slog.Logger

	settings Settings
	stack    Stack
	parts    []part
	services []named
	stopping atomic.Bool
	broken   chan error // what broke outside of parts; one is enough to stop
}

// part is something that runs beside others.
type part struct {
	name string
	run  func(context.Context) error
	// forever is for what may not end before it is told to.
	forever bool
}

type named struct {
	name string
	Service
}

// Run puts services together with build and runs them until ctx ends or one of
// them fails; then all stop, and everything is torn down. It returns the error
// of the part that failed first, or what went wrong on the way down; nil after
// a clean stop. If build fails, what it has acquired is torn down.
func Run(ctx context.Context, settings Settings, build func(*Group) error) (err error) {
	g := &Group{
		Log:      telemetry.NewLogger(settings.Log, os.Stderr),
		settings: settings,
		broken:   make(chan error, 1),
	}
	telemetry.ReportErrors(g.Log)
	defer func() {
		err = errors.Join(err, g.stack.Close(g.Log))
	}()
	if err := build(g); err != nil {
		return err
	}
	return g.run(ctx, StopTimeout)
}

// Serve adds a service: it opens the admin port, makes the service's telemetry
// and then the service itself. The port answers at once, /readyz with "starting"
// until the service runs.
func (g *Group) Serve(name string, port admin.Config, build func(Env) (Service, error)) error {
	tel, err := telemetry.New(context.Background(), name)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	g.stack.Push("telemetry of "+name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, telemetry.CloseTimeout)
		defer cancel()
		if err := tel.Close(ctx); err != nil {
			// Spans that nobody took are no failure of the process.
			g.Log.Warn("telemetry was not sent", "service", name, "err", err)
		}
		return nil
	})
	log := g.Log.With("service", name)
	checks := &checks{group: g}
	srv, err := admin.Open(port, g.settings.Net.Listener, checks, tel.Metrics(), log)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := srv.Serve(); err != nil {
			select {
			case g.broken <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	}()
	g.stack.Push("admin port of "+name, func(ctx context.Context) error {
		err := srv.Close(ctx)
		<-served
		return err
	})
	service, err := build(Env{
		Log:    log,
		Kafka:  g.settings.Kafka,
		Tracer: tel.Tracer,
		Meter:  tel.Meter,
		Net:    g.settings.Net,
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	checks.service.Store(&service)
	g.services = append(g.services, named{name, service})
	g.parts = append(g.parts, part{name: name, run: service.Run, forever: true})
	log.Info("admin port open", "address", srv.Addr().String())
	return nil
}

// Go adds something that runs beside the services until ctx ends. It may end
// earlier; with an error everything stops.
func (g *Group) Go(name string, run func(context.Context) error) {
	g.parts = append(g.parts, part{name: name, run: run})
}

// Defer has something taken down after all services have stopped, in the
// reverse order of Serve and Defer.
func (g *Group) Defer(name string, down func(context.Context) error) {
	g.stack.Push(name, down)
}

// Ready is nil when every service is; else it says which waits for what. It
// may be called while the group runs.
func (g *Group) Ready() error {
	if g.stopping.Load() {
		return errStopping
	}
	var errs []error
	for _, s := range g.services {
		if err := s.Ready(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return errors.Join(errs...)
}

// run runs what was put together.
func (g *Group) run(ctx context.Context, stopTimeout time.Duration) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		part part
		err  error
	}
	results := make(chan result, len(g.parts))
	left := map[string]bool{}
	for _, p := range g.parts {
		left[p.name] = true
		go func() { results <- result{p, p.run(ctx)} }()
	}
	var first error
	fail := func(err error) {
		if first == nil {
			first = err
		} else {
			g.Log.Error("failed while stopping", "err", err)
		}
		stop()
	}
	told := ctx.Done()
	var late <-chan time.Time
	for len(left) > 0 {
		select {
		case r := <-results:
			delete(left, r.part.name)
			switch {
			case r.err != nil:
				fail(fmt.Errorf("%s: %w", r.part.name, r.err))
			case r.part.forever && ctx.Err() == nil:
				fail(fmt.Errorf("%s: it ended by itself", r.part.name))
			}
		case err := <-g.broken:
			fail(err)
		case <-told:
			told = nil
			g.stopping.Store(true)
			g.Log.Info("stopping", "parts", len(left))
			late = time.After(stopTimeout)
		case <-late:
			return errors.Join(first, fmt.Errorf("still running %s after being told to stop: %s",
				stopTimeout, strings.Join(slices.Sorted(maps.Keys(left)), ", ")))
		}
	}
	return first
}

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

// checks is what the admin port asks about a service, from before it exists
// until after it has stopped.
type checks struct {
	group   *Group
	service atomic.Pointer[Service]
}

// Ready is nil when the service is and nobody has told the process to stop.
func (c *checks) Ready() error {
	if c.group.stopping.Load() {
		return errStopping
	}
	if s := c.service.Load(); s != nil {
		return (*s).Ready()
	}
	return errStarting
}

// Live is nil while the service is being made.
func (c *checks) Live() error {
	if s := c.service.Load(); s != nil {
		return (*s).Live()
	}
	return nil
}
