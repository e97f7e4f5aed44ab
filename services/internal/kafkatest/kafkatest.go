// Package kafkatest starts an in-process Kafka (kfake) for tests, with
// Tocsin's topics in it. It is for tests only.
package kafkatest

import (
	"context"
	"log/slog"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// Cluster is a running broker and the way to it.
type Cluster struct {
	*kfake.Cluster
	Kafka      kafka.Config
	Net        lifecycle.Network
	Topics     topic.Set
	Partitions int32
}

// Virtual starts a broker on a virtual network, so that a testing/synctest
// bubble can hold it, its clients and everything between.
func Virtual(t testing.TB, partitions int32, opts ...kfake.Opt) *Cluster {
	t.Helper()
	vn := &kfake.VirtualNetwork{}
	net := lifecycle.Network{Dial: vn.DialContext, Listen: vn.Listen}
	return start(t, partitions, net, append(opts, kfake.ListenFn(vn.Listen), kfake.Ports(9092)))
}

// Loopback starts a broker on a free port of 127.0.0.1.
func Loopback(t testing.TB, partitions int32, opts ...kfake.Opt) *Cluster {
	t.Helper()
	return start(t, partitions, lifecycle.Network{}, opts)
}

func start(t testing.TB, partitions int32, net lifecycle.Network, opts []kfake.Opt) *Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatalf("start kfake: %v", err)
	}
	t.Cleanup(c.Close)
	cluster := &Cluster{
		Cluster:    c,
		Kafka:      kafka.Config{Brokers: c.ListenAddrs(), TopicPrefix: "tocsin."},
		Net:        net,
		Topics:     topic.New("tocsin."),
		Partitions: partitions,
	}
	cl := cluster.Client(t)
	if _, err := kafka.Create(context.Background(), cl, cluster.Topics.All(), partitions, 1); err != nil {
		t.Fatalf("create topics: %v", err)
	}
	return cluster
}

// Client is a client of the cluster that is closed with the test.
func (c *Cluster) Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(c.Kafka.Options(c.Net.Dial), opts...)...)
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// Env is what a service under test is given: this cluster and network, the
// test's log, no telemetry.
func (c *Cluster) Env(t testing.TB) lifecycle.Env {
	t.Helper()
	return lifecycle.Env{
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
		Kafka:  c.Kafka,
		Tracer: tracenoop.NewTracerProvider(),
		Meter:  metricnoop.NewMeterProvider(),
		Net:    c.Net,
	}
}

// NeedsSwappedMutexes ends a test that would hang without the build tag
// synctests: a bubble's clock stands still while a goroutine waits for an
// ordinary mutex, as franz-go's do in a rebalance; the tag swaps them.
func NeedsSwappedMutexes(t testing.TB) {
	t.Helper()
	if !swappedMutexes {
		t.Fatal("this test needs -tags synctests ('make test' sets it)")
	}
}
