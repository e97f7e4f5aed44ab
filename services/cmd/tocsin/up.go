package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/tocsin/tocsin/services/archiver"
	"github.com/tocsin/tocsin/services/console"
	"github.com/tocsin/tocsin/services/gateway"
	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/broker"
	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/inbox"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"
	"github.com/tocsin/tocsin/services/monitor"
)

// upPartitions is the partition count of a new embedded broker: one process
// has nothing to spread.
const upPartitions = 4

// instance is the stable name of the services in `tocsin up`: the data
// directory's lock makes sure that there is one process of that name.
const instance = "up"

// The defaults that follow another setting of `tocsin up`.
const (
	defaultBroker    = "127.0.0.1:7192"
	defaultPublicURL = "http://127.0.0.1:7100"
)

// upCmd is `tocsin up`.
type upCmd struct {
	lifecycle.Settings `set:"kafka_brokers=127.0.0.1:7192"`

	Data   string         `name:"data" default:"./tocsin-data" placeholder:"DIR" help:"Where the embedded broker and the inbox keep what they have."`
	Demo   bool           `name:"demo" help:"Simulate a small fleet of cameras with short holds."`
	Broker config.Address `name:"broker.listen" default:"127.0.0.1:7192" help:"Where the embedded broker listens. It is not started when --kafka.brokers names another."`
	Sink   config.Address `name:"sink.listen" default:"127.0.0.1:7125" help:"Where the mail inbox takes mail. It is not started when --smtp.host names a relay."`

	Admins struct {
		Archiver admin.Config `embed:"" prefix:"archiver." set:"admin_listen=127.0.0.1:7111"`
		Monitor  admin.Config `embed:"" prefix:"monitor." set:"admin_listen=127.0.0.1:7112"`
		Gateway  admin.Config `embed:"" prefix:"gateway." set:"admin_listen=127.0.0.1:7113"`
		Console  admin.Config `embed:"" prefix:"console." set:"admin_listen=127.0.0.1:7110"`
	} `embed:"" prefix:"admin."`

	Archiver archiver.Config `embed:""`
	Monitor  monitor.Config  `embed:""`
	Gateway  gateway.Config  `embed:""`
	Console  console.Config  `embed:""`
}

// Validate names the first setting that is wrong.
func (c *upCmd) Validate() error {
	for _, s := range []struct {
		name    string
		address config.Address
	}{{"broker.listen", c.Broker}, {"sink.listen", c.Sink}} {
		if !s.address.Loopback() {
			return fmt.Errorf("%s: %s can be reached from other machines, and nobody is asked for a key there; use 127.0.0.1 or [::1]", s.name, s.address)
		}
	}
	return nil
}

// Run runs everything until ctx ends.
func (c *upCmd) Run(ctx context.Context) error {
	begun := time.Now()
	embedded := slices.Equal(c.Kafka.Brokers, []string{defaultBroker})
	if embedded {
		c.Kafka.Brokers = []string{c.Broker.String()}
	}
	if c.Gateway.PublicURL == defaultPublicURL {
		c.Gateway.PublicURL = "http://" + c.Console.Listen.String()
	}
	return lifecycle.Run(ctx, c.Settings, func(g *lifecycle.Group) error {
		release, err := broker.Lock(c.Data)
		if err != nil {
			return err
		}
		g.Defer("data directory", func(context.Context) error { return release() })
		if embedded {
			if err := c.startBroker(g); err != nil {
				return err
			}
		}
		var opts []console.Option
		if c.Gateway.SMTP.Host == "" {
			in, err := c.startSink(g)
			if err != nil {
				return err
			}
			opts = append(opts, console.WithInbox(in))
		}
		opts = append(opts, console.WithIngest("http://"+c.Archiver.Listen.String()))
		if err := c.serve(g, opts); err != nil {
			return err
		}
		g.Go("banner", func(ctx context.Context) error { return c.banner(ctx, g, begun, embedded) })
		if c.Demo {
			g.Go("demo", c.demo)
		}
		return nil
	})
}

func (c *upCmd) startBroker(g *lifecycle.Group) error {
	topics := topic.New(c.Kafka.TopicPrefix).All()
	cluster, err := broker.Open(filepath.Join(c.Data, "kafka"), c.Broker, topics, upPartitions, g.Log)
	if err != nil {
		return err
	}
	g.Defer("embedded broker", func(context.Context) error {
		cluster.Close()
		return nil
	})
	return nil
}

func (c *upCmd) startSink(g *lifecycle.Group) (*inbox.Inbox, error) {
	in, err := inbox.Open(filepath.Join(c.Data, "inbox"), inbox.Log(g.Log))
	if err != nil {
		return nil, err
	}
	ln, err := c.Sink.Listen(c.Net.Listener)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(c.Sink.String())
	if err != nil {
		return nil, fmt.Errorf("sink.listen: %w", err)
	}
	c.Gateway.SMTP.Host, c.Gateway.SMTP.TLS = host, "none"
	if c.Gateway.SMTP.Port, err = strconv.Atoi(port); err != nil {
		return nil, fmt.Errorf("sink.listen: %s: the port is no number", c.Sink)
	}
	// After the services, which may still be sending when they stop.
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- in.Serve(ctx, ln) }()
	g.Defer("inbox", func(context.Context) error {
		cancel()
		return <-served
	})
	return in, nil
}

func (c *upCmd) serve(g *lifecycle.Group, opts []console.Option) error {
	c.Monitor.Instance, c.Gateway.Instance = instance, instance
	c.Archiver.DataCenter = c.Monitor.DataCenter
	if err := g.Serve("archiver", c.Admins.Archiver, func(env lifecycle.Env) (lifecycle.Service, error) {
		return archiver.New(c.Archiver, env)
	}); err != nil {
		return err
	}
	if err := g.Serve("monitor", c.Admins.Monitor, func(env lifecycle.Env) (lifecycle.Service, error) {
		return monitor.New(c.Monitor, env)
	}); err != nil {
		return err
	}
	if err := g.Serve("gateway", c.Admins.Gateway, func(env lifecycle.Env) (lifecycle.Service, error) {
		return gateway.New(c.Gateway, env)
	}); err != nil {
		return err
	}
	return g.Serve("console", c.Admins.Console, func(env lifecycle.Env) (lifecycle.Service, error) {
		return console.New(c.Console, env, opts...)
	})
}

// banner says that all is ready, and what this is good for.
func (c *upCmd) banner(ctx context.Context, g *lifecycle.Group, begun time.Time, embedded bool) error {
	for g.Ready() != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	what := "The broker and the inbox in here are for trying out and for small sites: one copy of everything, in " + c.Data + "."
	if !embedded {
		what = "Kafka is at " + c.Kafka.Brokers[0] + "."
	}
	fmt.Printf(`
Tocsin is ready after %s.

  see it       http://%s
  send events  http://%s/v1/events
  mail         %s

%s
Take real ones with --kafka.brokers and --smtp.host. Ctrl-C stops; what is pending waits.

`, time.Since(begun).Round(time.Millisecond), c.Console.Listen, c.Archiver.Listen,
		net.JoinHostPort(c.Gateway.SMTP.Host, strconv.Itoa(c.Gateway.SMTP.Port)), what)
	return nil
}
