// Package lifecycle is how a process of ours starts and stops: what a service
// is given, what it must offer, and the order in which it is torn down. It
// knows no service.
package lifecycle

import (
	"context"
	"log/slog"
	"net"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tocsin/tocsin/services/internal/kafka"
)

// Env is what a process gives each of its services.
type Env struct {
	Log   *slog.Logger
	Kafka kafka.Config
	// Tracer and Meter are never nil; they do nothing where telemetry is off.
	Tracer trace.TracerProvider
	Meter  metric.MeterProvider
	Net    Network
}

// Network is the way out and in; its zero value is the ordinary one. Tests put
// a virtual network here.
type Network struct {
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(network, address string) (net.Listener, error)
}

// Listener opens address.
func (n Network) Listener(network, address string) (net.Listener, error) {
	if n.Listen != nil {
		return n.Listen(network, address)
	}
	return net.Listen(network, address)
}

// Dialer connects to address.
func (n Network) Dialer(ctx context.Context, network, address string) (net.Conn, error) {
	if n.Dial != nil {
		return n.Dial(ctx, network, address)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// Service is one of Tocsin's services in a process.
type Service interface {
	// Run works until ctx ends, then stops cleanly and returns nil. Any other
	// end is an error.
	Run(ctx context.Context) error
	// Ready is nil when the service does its work; else it says what it waits for.
	Ready() error
	// Live is nil unless the service can only be helped by a restart.
	Live() error
}
