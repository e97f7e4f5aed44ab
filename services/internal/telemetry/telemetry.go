// Package telemetry makes what a service reports with: a logger whose lines
// carry the trace they belong to, a tracer that exports over OTLP where the
// usual OTEL_ variables say so, and a meter whose instruments are read as
// Prometheus metrics. It measures nothing itself but the Go runtime and the
// process.
//
// Invariant: nothing here is global, but for the two places where the
// OpenTelemetry library reports its own errors. Several services in one process
// have each their own name, traces and metrics.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Propagator is how a trace travels in headers of ours: W3C trace context.
var Propagator propagation.TextMapPropagator = propagation.TraceContext{}

// Telemetry is what one service reports with.
type Telemetry struct {
	Tracer trace.TracerProvider
	Meter  metric.MeterProvider

	metrics  http.Handler
	shutdown []func(context.Context) error
}

// New makes the telemetry of a service. The environment decides about traces,
// as the OpenTelemetry specification has it:
//
//   - OTEL_SDK_DISABLED=true or OTEL_TRACES_EXPORTER=none: none;
//   - OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
//     OTEL_TRACES_EXPORTER=otlp: OTLP, by OTEL_EXPORTER_OTLP_PROTOCOL or
//     …_TRACES_PROTOCOL (grpc, or http/protobuf, the default);
//   - nothing of it: none.
//
// The sampler, the batches, further resource attributes and everything of the
// exporter (headers, certificates, timeouts) are read by the library from the
// variables of the specification. OTEL_SERVICE_NAME beats service.
func New(ctx context.Context, service string) (*Telemetry, error) {
	res, err := describe(ctx, service)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{Tracer: tracenoop.NewTracerProvider()}
	if err := t.startMetrics(res); err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	if err := t.startTraces(ctx, res); err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	return t, nil
}

// Metrics serves the service's metrics in Prometheus' formats.
func (t *Telemetry) Metrics() http.Handler { return t.metrics }

// Close sends what is still to be sent. It gives up when ctx ends.
func (t *Telemetry) Close(ctx context.Context) error {
	var errs []error
	for i := len(t.shutdown) - 1; i >= 0; i-- {
		errs = append(errs, t.shutdown[i](ctx))
	}
	t.shutdown = nil
	return errors.Join(errs...)
}

// describe is the resource: who reports. Several processes of a service differ
// by host and process id.
func describe(ctx context.Context, service string) (*resource.Resource, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", service),
			attribute.String("service.namespace", "tocsin"),
			attribute.String("service.instance.id", host+"-"+strconv.Itoa(os.Getpid())),
			attribute.String("host.name", host),
		),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("describe %s for telemetry (OTEL_RESOURCE_ATTRIBUTES): %w", service, err)
	}
	return res, nil
}

func (t *Telemetry) startMetrics(res *resource.Resource) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return fmt.Errorf("register process metrics: %w", err)
	}
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo())
	if err != nil {
		return fmt.Errorf("make the Prometheus exporter: %w", err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithResource(res))
	t.shutdown = append(t.shutdown, provider.Shutdown)
	t.Meter = provider
	// OpenMetrics is the format that has exemplars.
	t.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: registry})
	if err := runtime.Start(runtime.WithMeterProvider(provider)); err != nil {
		return fmt.Errorf("measure the Go runtime: %w", err)
	}
	return nil
}

func (t *Telemetry) startTraces(ctx context.Context, res *resource.Resource) error {
	protocol, err := otlpProtocol(os.Getenv)
	if err != nil || protocol == "" {
		return err
	}
	var exporter sdktrace.SpanExporter
	if protocol == "grpc" {
		exporter, err = otlptracegrpc.New(ctx)
	} else {
		exporter, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return fmt.Errorf("export traces by OTLP over %s: %w", protocol, err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	t.shutdown = append(t.shutdown, provider.Shutdown)
	t.Tracer = provider
	return nil
}

// otlpProtocol is how traces are exported, "" if they are not.
func otlpProtocol(env func(string) string) (string, error) {
	first := func(names ...string) string {
		for _, n := range names {
			if v := env(n); v != "" {
				return v
			}
		}
		return ""
	}
	if env("OTEL_SDK_DISABLED") == "true" {
		return "", nil
	}
	switch exporter := env("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return "", nil
	case "otlp":
	case "":
		if first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
			return "", nil
		}
	default:
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER is %q: otlp and none are known", exporter)
	}
	switch protocol := first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "":
		return "http/protobuf", nil
	case "grpc", "http/protobuf":
		return protocol, nil
	default:
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: grpc and http/protobuf are known", protocol)
	}
}

// ReportErrors sends what goes wrong inside the OpenTelemetry library (an
// export that failed, say) to log. The library has one such place for the whole
// process.
func ReportErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("telemetry", "err", err)
	}))
}

// CloseTimeout is how long the end of a process waits for its last spans.
const CloseTimeout = 3 * time.Second
