package harness

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector takes spans over OTLP/HTTP and keeps them.
type Collector struct {
	// Env makes a service of ours export to it, without delay.
	Env []string

	t     testing.TB
	mu    sync.Mutex
	spans []Span
}

// Span is one span and the service that it came from.
type Span struct {
	Service string
	*tracev1.Span
}

// Trace is the trace's id in hexadecimal.
func (s Span) Trace() string { return fmt.Sprintf("%x", s.TraceId) }

// ID is the span's id in hexadecimal.
func (s Span) ID() string { return fmt.Sprintf("%x", s.SpanId) }

// Parent is the id of the span above; empty for a root.
func (s Span) Parent() string { return fmt.Sprintf("%x", s.ParentSpanId) }

// Start is when the span began.
func (s Span) Start() time.Time { return time.Unix(0, int64(s.StartTimeUnixNano)) }

// End is when the span ended.
func (s Span) End() time.Time { return time.Unix(0, int64(s.EndTimeUnixNano)) }

// Attribute is the value of a string attribute, or "".
func (s Span) Attribute(key string) string { return attribute(s.Attributes, key) }

func attribute(attributes []*commonv1.KeyValue, key string) string {
	for _, a := range attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

func (s Span) String() string {
	return fmt.Sprintf("%s: %s (%v) trace %s span %s parent %s", s.Service, s.Name, s.End().Sub(s.Start()), s.Trace(), s.ID(), s.Parent())
}

// StartCollector starts a collector on loopback.
func StartCollector(t testing.TB) *Collector {
	t.Helper()
	ln := listen(t, FreeAddress(t))
	c := &Collector{t: t, Env: []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + ln.Addr().String(),
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_BSP_SCHEDULE_DELAY=50",
	}}
	server := &http.Server{Handler: http.HandlerFunc(c.take)}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	t.Cleanup(func() {
		server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("collector: %v", err)
		}
		if t.Failed() {
			for _, s := range c.Spans() {
				t.Logf("---- span of %v", s)
			}
		}
	})
	return c
}

// Spans are those that came so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Trace waits until a trace has spans whose names begin so, and returns its
// spans by their ids.
func (c *Collector) Trace(id string, within time.Duration, names ...string) map[string]Span {
	c.t.Helper()
	var spans map[string]Span
	Eventually(c.t, within, "trace "+id, func() error {
		spans = make(map[string]Span)
		for _, s := range c.Spans() {
			if s.Trace() == id {
				spans[s.ID()] = s
			}
		}
		for _, name := range names {
			found := false
			for _, s := range spans {
				found = found || strings.HasPrefix(s.Name, name)
			}
			if !found {
				return fmt.Errorf("no span %q among %d", name, len(spans))
			}
		}
		return nil
	})
	return spans
}

func (c *Collector) take(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzip, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzip
	}
	var request collectorv1.ExportTraceServiceRequest
	bytes, err := io.ReadAll(body)
	if err == nil {
		err = proto.Unmarshal(bytes, &request)
	}
	if err != nil {
		c.t.Errorf("collector: %v", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		service := attribute(resource.GetResource().GetAttributes(), "service.name")
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				c.spans = append(c.spans, Span{Service: service, Span: span})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}
