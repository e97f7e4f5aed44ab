package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// clearEnv takes away what the machine of the test says about telemetry.
func clearEnv(t *testing.T) {
	for _, n := range []string{"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
		"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER"} {
		t.Setenv(n, "")
	}
}

func scrape(t *testing.T, tel *Telemetry) string {
	t.Helper()
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	tel.Metrics().ServeHTTP(rec, req)
	return rec.Body.String()
}

// Proves that an instrument is exported under the contract's name whether it is
// made with that name or with a dotted one and a unit, without labels beyond
// its own, and with the trace as exemplar.
func TestMetricNames(t *testing.T) {
	clearEnv(t)
	tel, err := New(t.Context(), "gateway")
	if err != nil {
		t.Fatal(err)
	}
	defer tel.Close(t.Context())
	meter := tel.Meter.Meter("test")
	tracer := sdktrace.NewTracerProvider().Tracer("test")
	ctx, span := tracer.Start(t.Context(), "mail")
	defer span.End()

	literal, _ := meter.Float64Histogram("tocsin_alert_delay_seconds")
	dotted, _ := meter.Float64Histogram("tocsin.mail.delay", metric.WithUnit("s"))
	counter, _ := meter.Int64Counter("tocsin_outcomes_total")
	dottedCounter, _ := meter.Int64Counter("tocsin.dead_letters")
	gauge, _ := meter.Int64Gauge("tocsin_monitor_devices")
	literal.Record(ctx, 1, metric.WithAttributes(attribute.String("type", "ALERT"), attribute.String("held", "excluded")))
	dotted.Record(ctx, 1)
	counter.Add(ctx, 3, metric.WithAttributes(attribute.String("outcome", "sent")))
	dottedCounter.Add(ctx, 1)
	gauge.Record(ctx, 7)

	got := scrape(t, tel)
	for _, want := range []string{
		`tocsin_alert_delay_seconds_bucket{held="excluded",type="ALERT",le="5.0"} 1`,
		`trace_id="` + span.SpanContext().TraceID().String() + `"`,
		`tocsin_mail_delay_seconds_count 1`,
		"tocsin_outcomes_total{outcome=\"sent\"} 3",
		"tocsin_dead_letters_total 1",
		"tocsin_monitor_devices 7",
		`service_name="gateway"`,
		"process_resident_memory_bytes",
		"go_goroutine_count",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// Proves that two services in one process do not see each other's metrics.
func TestTwoServices(t *testing.T) {
	clearEnv(t)
	a, err := New(t.Context(), "monitor")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(t.Context())
	b, err := New(t.Context(), "gateway")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	c, _ := a.Meter.Meter("test").Int64Counter("tocsin_monitor_interrupts_total")
	c.Add(t.Context(), 1)
	if !strings.Contains(scrape(t, a), "tocsin_monitor_interrupts_total 1") {
		t.Error("the monitor lacks its own metric")
	}
	if strings.Contains(scrape(t, b), "tocsin_monitor") {
		t.Error("the gateway has the monitor's metric")
	}
}

// Proves when traces are exported, and over what, for the usual variables.
func TestOTLPProtocol(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		want string
		err  string
	}{
		{name: "nothing said"},
		{name: "endpoint", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, want: "http/protobuf"},
		{name: "traces endpoint", env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, want: "http/protobuf"},
		{name: "exporter alone", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, want: "http/protobuf"},
		{name: "grpc", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, want: "grpc"},
		{name: "traces protocol first", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, want: "http/protobuf"},
		{name: "none", env: map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}},
		{name: "disabled", env: map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}},
		{name: "unknown exporter", env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, err: "zipkin"},
		{name: "unknown protocol", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, err: "http/json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := otlpProtocol(func(n string) string { return tt.env[n] })
			if got != tt.want {
				t.Errorf("protocol %q, want %q", got, tt.want)
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want one with %q", err, tt.err)
			}
		})
	}
}

// Proves that a span reaches an OTLP endpoint over HTTP by the time Close
// returns, and that without the variables no span is recorded at all.
func TestExport(t *testing.T) {
	clearEnv(t)
	got := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + string(body)
	}))
	defer srv.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	tel, err := New(t.Context(), "archiver")
	if err != nil {
		t.Fatal(err)
	}
	_, span := tel.Tracer.Tracer("test").Start(t.Context(), "accept etag")
	span.End()
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 {
		t.Fatal("Close returned before the span was sent")
	}
	req := <-got
	for _, want := range []string{"/v1/traces ", "accept etag", "archiver", "service.instance.id"} {
		if !strings.Contains(req, want) {
			t.Errorf("the export lacks %q", want)
		}
	}

	clearEnv(t)
	tel, err = New(t.Context(), "archiver")
	if err != nil {
		t.Fatal(err)
	}
	defer tel.Close(t.Context())
	if _, isNoop := tel.Tracer.(noop.TracerProvider); !isNoop {
		t.Errorf("tracer %T without OTEL_ variables", tel.Tracer)
	}
}

// Proves that a line logged with a span's context has its ids, in groups and
// with attributes too, that others have none, and that the level holds.
func TestLogger(t *testing.T) {
	var buf bytes.Buffer
	log := NewLogger(LogConfig{Format: "json", Level: slog.LevelInfo}, &buf).With("service", "monitor")
	ctx, span := sdktrace.NewTracerProvider().Tracer("test").Start(context.Background(), "x")
	defer span.End()
	log.DebugContext(ctx, "too small")
	log.InfoContext(ctx, "with", "device_id", "d1")
	log.Info("without")

	lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2:\n%s", len(lines), buf.String())
	}
	var with, without map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &with); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(lines[1]), &without); err != nil {
		t.Fatal(err)
	}
	if with["trace_id"] != trace.SpanContextFromContext(ctx).TraceID().String() || with["span_id"] == nil || with["service"] != "monitor" {
		t.Errorf("line in a span: %v", with)
	}
	if without["trace_id"] != nil {
		t.Errorf("line outside a span: %v", without)
	}
	buf.Reset()
	NewLogger(LogConfig{Format: "text"}, &buf).Info("hello")
	if !strings.Contains(buf.String(), "msg=hello") {
		t.Errorf("text form: %s", buf.String())
	}
}
