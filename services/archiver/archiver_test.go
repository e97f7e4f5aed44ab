package archiver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/kafkatest"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

// defaults are the settings that people get who set none, without the beacon.
func defaults(t testing.TB) Config {
	t.Helper()
	var cfg Config
	k, err := kong.New(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Parse([]string{"--no-archiver.beacon", "--archiver.id=archiver-1"}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// bench is an archiver under test, with Kafka and a caller, in one bubble.
type bench struct {
	*testing.T
	cluster *kafkatest.Cluster
	env     lifecycle.Env
	client  *http.Client
	service *Service
	// away makes every request to Kafka fail, in one way or another.
	away atomic.Bool
	stop func()
}

// start runs an archiver in the bubble it is called in. It is stopped, and
// must stop cleanly, at the end of the test.
func start(t *testing.T, cfg Config, adapt ...func(*lifecycle.Env)) *bench {
	t.Helper()
	b := &bench{T: t, cluster: kafkatest.Virtual(t, 1)}
	b.cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if b.away.Load() {
			return nil, errors.New("away"), true
		}
		return nil, nil, false
	})
	b.env = b.cluster.Env(t)
	for _, f := range adapt {
		f(&b.env)
	}
	// Without a timeout a caller who asks before it sends would not wait for the answer.
	transport := &http.Transport{DialContext: b.env.Net.Dial, ExpectContinueTimeout: time.Minute}
	b.client = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	b.run(cfg)
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bench) run(cfg Config) {
	b.Helper()
	var err error
	if b.service, err = New(cfg, b.env); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	service := b.service
	go func() { ended <- service.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.Errorf("the archiver ended with %v", err)
		}
		b.stop = func() {}
	}
	for b.service.Ready() != nil && !b.away.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond)
}

type reply struct {
	status     int
	retryAfter string
	body       string
	Accepted   int
	Duplicate  int
	Rejected   []struct {
		Index  int
		Field  string
		Reason string
	}
	Error string
}

// post sends a body and reads the answer.
func (b *bench) post(path, contentType, body string, headers ...string) reply {
	b.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://127.0.0.1:7101"+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return b.do(req)
}

func (b *bench) do(req *http.Request) reply {
	b.Helper()
	resp, err := b.client.Do(req)
	if err != nil {
		b.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	r := reply{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After"), body: string(text)}
	if err := json.Unmarshal(text, &r); err != nil {
		b.Fatalf("%s %s: %d %q is no JSON: %v", req.Method, req.URL, resp.StatusCode, text, err)
	}
	return r
}

const lines = "application/x-ndjson"

// accept posts lines that must all be accepted.
func (b *bench) accept(events ...string) {
	b.Helper()
	r := b.post("/v1/events", lines, strings.Join(events, "\n"))
	if r.status != http.StatusAccepted || r.Accepted != len(events) {
		b.Fatalf("got %d %s", r.status, r.body)
	}
}

// records reads the topic of ETags from its beginning.
func (b *bench) records() []*kgo.Record {
	b.Helper()
	topic := b.cluster.Topics.ETags.Name
	cl := b.cluster.Client(b.T, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		b.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	var all []*kgo.Record
	for int64(len(all)) < end.Offset {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			b.Fatal(err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

// events are the ETags, decoded.
func (b *bench) events() []*eventv1.DeviceEvent {
	b.Helper()
	var all []*eventv1.DeviceEvent
	for _, rec := range b.records() {
		ev, err := codec.DecodeEvent(rec.Value)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, ev)
	}
	return all
}

func status(eventID, device, occurTime, state string) string {
	return fmt.Sprintf(`{"eventId":%q,"accountId":"a","deviceId":%q,"occurTime":%q,"status":{"state":%q}}`, eventID, device, occurTime, state)
}

// Proves that what was answered with 202 is in Kafka, in the form of the
// contract: key, headers, and a timestamp that is the clock's, not the event's
// (rule T2).
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaults(t)
		cfg.DataCenter = "c001"
		b := start(t, cfg)
		const event = `{"eventId":"e1","accountId":"00011557","deviceId":"100a9af6","sourceId":"a1","sourceEpoch":"1","sequence":"7","occurTime":"1999-06-01T12:00:00.250Z","status":{"bits":1441847}}`
		now := time.Now()
		b.accept(event)
		recs := b.records()
		if len(recs) != 1 {
			t.Fatalf("%d records", len(recs))
		}
		rec := recs[0]
		if string(rec.Key) != "00011557/100a9af6" || rec.Timestamp.Before(now.Add(-time.Second)) {
			t.Errorf("key %q, timestamp %v", rec.Key, rec.Timestamp)
		}
		headers := map[string]string{}
		for _, h := range rec.Headers {
			headers[h.Key] = string(h.Value)
		}
		if diff := cmp.Diff(map[string]string{
			"type": "tocsin.event.v1.DeviceEvent", "occur-time": "1999-06-01T12:00:00.250Z", "datacenter": "c001", "publisher": "archiver-1",
		}, headers); diff != "" {
			t.Errorf("headers: -want +got\n%s", diff)
		}
		ev, err := codec.DecodeEvent(rec.Value)
		if err != nil || string(codec.MarshalEventJSON(ev)) != event {
			t.Errorf("%s %v", codec.MarshalEventJSON(ev), err)
		}
	})
}

// Proves that each item has its own result, and that a bad or huge one costs
// none of the others.
func TestItemsHaveTheirOwnResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, defaults(t))
		r := b.post("/v1/events", lines, strings.Join([]string{
			status("e1", "d", "2000-01-01T00:00:00Z", "ONLINE"),
			`{"eventId":"e2","accountId":"a","deviceId":"d","occurTime":946684800,"status":{"state":"ONLINE"}}`,
			"not JSON",
			`{"eventId":"` + strings.Repeat("x", 1<<20) + `","accountId":"a","deviceId":"d","heartbeat":{}}`,
			`{"eventId":"e5","accountId":"a","deviceId":"no good","heartbeat":{}}`,
			`{"eventId":"e6","accountId":"a","deviceId":"d","heartbeat":{}}`,
		}, "\n"))
		if r.status != http.StatusAccepted || r.Accepted != 2 || r.Duplicate != 0 {
			t.Errorf("got %d %s", r.status, r.body)
		}
		var rejected []string
		for _, x := range r.Rejected {
			rejected = append(rejected, fmt.Sprint(x.Index, x.Field))
		}
		if want := []string{"1occurTime", "2", "3eventId", "4deviceId"}; !slices.Equal(rejected, want) {
			t.Errorf("rejected %v, want %v: %s", rejected, want, r.body)
		}
		if len(r.body) > 2000 {
			t.Errorf("the answer has %d bytes", len(r.body))
		}
		var ids []string
		for _, ev := range b.events() {
			ids = append(ids, ev.EventId)
		}
		if !slices.Equal(ids, []string{"e1", "e6"}) {
			t.Errorf("events %v are in Kafka", ids)
		}
	})
}

// Proves each answer to a request of which nothing is taken: the status and
// what it says to help.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaults(t)
		cfg.MaxEvents, cfg.MaxBuffered = 3, 3
		b := start(t, cfg)
		beat := `{"accountId":"a","deviceId":"d","heartbeat":{}}`
		for _, tc := range []struct {
			name, method, path, contentType, body string
			headers                               []string
			status                                int
			want                                  string
		}{
			{"unreadable", "POST", "/v1/events", "application/json", `{"accountId":`, nil, 400, "ends too early"},
			{"a time in seconds", "POST", "/v1/events", "application/json", `{"accountId":"a","deviceId":"d","occurTime":946684800,"heartbeat":{}}`, nil, 400, "occurTime: must be an RFC 3339 time"},
			{"a time in milliseconds", "POST", "/v1/events", "application/json", `{"accountId":"a","deviceId":"d","occurTime":"946684800000","heartbeat":{}}`, nil, 400, "occurTime: "},
			{"a wrong id", "POST", "/v1/events", lines, `{"accountId":"a","deviceId":"d/e","heartbeat":{}}` + "\n" + `{"accountId":"a","heartbeat":{}}`, nil, 400, "none of the 2 items is usable; the first: deviceId: "},
			{"nothing", "POST", "/v1/events", lines, "", nil, 400, "no event in it"},
			{"an empty array", "POST", "/v1/events", "application/json", "[]", nil, 400, "no event in it"},
			{"no body at all", "POST", "/v1/events", "", "", nil, 400, "empty"},
			{"another type", "POST", "/v1/events", "text/plain", beat, nil, 415, "application/x-ndjson"},
			{"curl's type", "POST", "/v1/events", "application/x-www-form-urlencoded", beat, nil, 415, "application/json"},
			{"no type", "POST", "/v1/events", "", beat, nil, 415, "application/json"},
			{"a broken type", "POST", "/v1/events", "application/", beat, nil, 415, "not readable"},
			{"packed", "POST", "/v1/events", lines, beat, []string{"Content-Encoding", "gzip"}, 415, "gzip"},
			{"GET", "GET", "/v1/events", "", "", nil, 405, "POST"},
			{"PUT to a feed", "PUT", "/v1/feeds/motion", "", "", nil, 405, "POST"},
			{"no such feed", "POST", "/v1/feeds/nest", lines, beat, nil, 404, "een-poll, motion"},
			{"elsewhere", "POST", "/v2/events", lines, beat, nil, 404, "/v1/events"},
			{"too many", "POST", "/v1/events", lines, strings.Repeat(beat+"\n", 4), nil, 413, "limit is 3"},
			{"too large", "POST", "/v1/events", lines, strings.Repeat(" ", 20<<20), nil, 413, "limit of 8388608 bytes"},
			{"too large, asked before", "POST", "/v1/events", lines, strings.Repeat(" ", 20<<20), []string{"Expect", "100-continue"}, 413, "limit of 8388608 bytes"},
			{"a web page", "POST", "/v1/events", lines, beat, []string{"Origin", "https://evil.test"}, 403, "web pages"},
			{"a feed without account", "POST", "/v1/feeds/een-poll", lines, `{"data":{}}`, nil, 400, "account: is missing"},
			{"a feed's unreadable message", "POST", "/v1/feeds/een-poll?account=a", lines, `{"data":`, nil, 400, "ends too early"},
			{"a hook without event", "POST", "/v1/feeds/motion?account=a&device=d", "", "", nil, 400, "event: "},
		} {
			req, err := http.NewRequest(tc.method, "http://127.0.0.1:7101"+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if tc.contentType != "" {
				req.Header.Set("Content-Type", tc.contentType)
			}
			for i := 0; i < len(tc.headers); i += 2 {
				req.Header.Set(tc.headers[i], tc.headers[i+1])
			}
			r := b.do(req)
			if r.status != tc.status || !strings.Contains(r.Error, tc.want) || r.Accepted != 0 || !strings.Contains(r.body, `"rejected":[`) {
				t.Errorf("%s: got %d %s, want %d with %q", tc.name, r.status, r.body, tc.status, tc.want)
			}
		}
		if n := len(b.records()); n != 0 {
			t.Errorf("%d events are in Kafka", n)
		}
	})
}

// Proves that a body without a length that turns out too large is read to the
// end and answered, so that its sender sees the answer.
func TestTooLargeWithoutALength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, defaults(t))
		req, err := http.NewRequest(http.MethodPost, "http://127.0.0.1:7101/v1/events", io.LimitReader(spaces{}, 20<<20))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", lines)
		if r := b.do(req); r.status != http.StatusRequestEntityTooLarge {
			t.Errorf("got %d %s", r.status, r.body)
		}
	})
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Proves that while Kafka is away a caller gets 503 with Retry-After within
// the time that is set, never a 2xx; that the archiver says so to who asks
// whether it is ready; and that it takes events again when Kafka is back,
// those that it had refused, too.
func TestKafkaAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, defaults(t))
		b.accept(status("e1", "d", "2000-01-01T00:00:00Z", "ONLINE"))
		b.away.Store(true)
		refused := status("e2", "d", "2000-01-01T00:00:01Z", "OFFLINE")
		for i := range 3 {
			before := time.Now()
			r := b.post("/v1/events", lines, refused)
			if r.status != http.StatusServiceUnavailable || r.retryAfter == "" || r.Accepted != 0 {
				t.Errorf("request %d: got %d %s, Retry-After %q", i, r.status, r.body, r.retryAfter)
			}
			if took := time.Since(before); took > 11*time.Second {
				t.Errorf("request %d: it took %v", i, took)
			}
			time.Sleep(5 * time.Second)
		}
		if b.service.Ready() == nil {
			t.Error("it says that it is ready")
		}
		b.away.Store(false)
		tries := 0
		for b.post("/v1/events", lines, refused).status != http.StatusAccepted {
			if tries++; tries > 10 {
				t.Fatal("50 s after Kafka is back, events are still refused")
			}
			time.Sleep(5 * time.Second)
		}
		if err := b.service.Ready(); err != nil {
			t.Error(err)
		}
		var ids []string
		for _, ev := range b.events() {
			ids = append(ids, ev.EventId)
		}
		if ids = slices.Compact(ids); !slices.Equal(ids, []string{"e1", "e2"}) {
			t.Errorf("events %v are in Kafka", ids)
		}
	})
}

// Proves that an archiver that starts before Kafka refuses with 503 until
// Kafka is there, and then works without help.
func TestStartsBeforeKafka(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, defaults(t))
		b.stop()
		b.away.Store(true)
		b.run(defaults(t))
		time.Sleep(30 * time.Second)
		if r := b.post("/v1/events", lines, status("e1", "d", "2000-01-01T00:00:00Z", "ONLINE")); r.status != http.StatusServiceUnavailable || r.retryAfter == "" {
			t.Errorf("got %d %s", r.status, r.body)
		}
		b.away.Store(false)
		time.Sleep(10 * time.Second)
		b.accept(status("e1", "d", "2000-01-01T00:00:00Z", "ONLINE"))
	})
}

// Proves that a request sent again after a cut reply has one effect.
func TestRepeatedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, defaults(t))
		events := []string{
			status("e1", "d", "2000-01-01T00:00:00Z", "ONLINE"),
			`{"eventId":"e2","accountId":"a","deviceId":"d","occurTime":"2000-01-01T00:00:01Z","motion":{"phase":"START"}}`,
		}
		b.accept(events...)
		r := b.post("/v1/events", lines, strings.Join(append(events, status("e3", "d", "2000-01-01T00:00:02Z", "OFFLINE")), "\n"))
		if r.status != http.StatusAccepted || r.Accepted != 1 || r.Duplicate != 2 {
			t.Errorf("got %d %s", r.status, r.body)
		}
		if r := b.post("/v1/events", lines, events[0]); r.status != http.StatusAccepted || r.Duplicate != 1 {
			t.Errorf("only repeated: got %d %s", r.status, r.body)
		}
		twice := status("e4", "d", "2000-01-01T00:00:03Z", "ONLINE")
		if r := b.post("/v1/events", lines, twice+"\n"+twice); r.Accepted != 1 || r.Duplicate != 1 {
			t.Errorf("repeated in itself: got %d %s", r.status, r.body)
		}
		if n := len(b.records()); n != 4 {
			t.Errorf("%d events are in Kafka, want 4", n)
		}
	})
}

// Proves rule L1: where the archiver alone speaks for a device, repeats do not
// reach Kafka but are accepted; a new archiver passes the first status on.
func TestAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaults(t)
		cfg.Affinity = true
		b := start(t, cfg)
		for i, state := range []string{"ONLINE", "ONLINE", "ONLINE", "OFFLINE", "OFFLINE", "ONLINE"} {
			b.accept(status(fmt.Sprint("e", i), "d", fmt.Sprintf("2000-01-01T00:00:0%dZ", i), state))
		}
		b.stop()
		b.run(cfg)
		b.accept(status("e8", "d", "2000-01-01T00:00:08Z", "ONLINE"))
		b.accept(status("e9", "d", "2000-01-01T00:00:09Z", "ONLINE"))
		var ids []string
		for _, ev := range b.events() {
			ids = append(ids, ev.EventId)
		}
		if want := []string{"e0", "e3", "e5", "e8"}; !slices.Equal(ids, want) {
			t.Errorf("events %v are in Kafka, want %v", ids, want)
		}
	})
}

// Proves the slow refresh of rule L1: each known status again every 30 min,
// spread out, marked, with its original run, sequence and times; and in
// heartbeat mode every 30 s.
func TestRestate(t *testing.T) {
	for mode, every := range map[string]time.Duration{"change": 30 * time.Minute, "heartbeat": 30 * time.Second} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := defaults(t)
				cfg.Mode = mode
				b := start(t, cfg)
				const devices, rounds = 60, 2
				begin := time.Now()
				var events []string
				for i := range devices {
					events = append(events, fmt.Sprintf(`{"eventId":"e%d","accountId":"a","deviceId":"d%d","sourceId":"s","sourceEpoch":"1","sequence":"7","occurTime":"2000-01-01T00:00:00Z","status":{"state":"OFFLINE"}}`, i, i))
				}
				b.accept(events...)
				time.Sleep(rounds*every - time.Since(begin))
				again := map[string][]time.Time{}
				seconds := map[int64]int{}
				for _, rec := range b.records()[devices:] {
					ev, err := codec.DecodeEvent(rec.Value)
					if err != nil {
						t.Fatal(err)
					}
					received, _ := codec.UnixMilli(ev.ReceiveTime)
					if !ev.Restated || ev.SourceId != "s" || ev.SourceEpoch != "1" || ev.Sequence != 7 ||
						codec.FormatTime(ev.OccurTime.AsTime().UnixMilli()) != "2000-01-01T00:00:00.000Z" ||
						received < begin.UnixMilli() || received > begin.Add(5*time.Second).UnixMilli() {
						t.Errorf("restated as %s", codec.MarshalEventJSON(ev))
					}
					again[ev.DeviceId] = append(again[ev.DeviceId], rec.Timestamp)
					seconds[rec.Timestamp.Unix()]++
				}
				if len(again) != devices {
					t.Errorf("%d of %d devices are restated", len(again), devices)
				}
				for device, times := range again {
					if len(times) != rounds && len(times) != rounds-1 {
						t.Errorf("%s: restated %d times in %d rounds", device, len(times), rounds)
					}
					for i := 1; i < len(times); i++ {
						if gap := times[i].Sub(times[i-1]); gap < every-2*time.Second || gap > every+2*time.Second {
							t.Errorf("%s: restated after %v", device, gap)
						}
					}
				}
				for second, n := range seconds {
					if n > devices/4 {
						t.Errorf("%d of %d devices in second %d", n, devices, second)
					}
				}
			})
		})
	}
}

// Proves that only an ETag that may have an effect is traced, that its trace
// joins the caller's, and that its context is in the record.
func TestTraces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		b := start(t, defaults(t), func(env *lifecycle.Env) { env.Tracer = tracer })
		const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		r := b.post("/v1/events", lines, strings.Join([]string{
			status("first", "d", "2000-01-01T00:00:00Z", "ONLINE"),
			status("repeat", "d", "2000-01-01T00:00:01Z", "ONLINE"),
			status("change", "d", "2000-01-01T00:00:02Z", "OFFLINE"),
			`{"eventId":"start","accountId":"a","deviceId":"d","occurTime":"2000-01-01T00:00:03Z","motion":{"phase":"START"}}`,
			`{"eventId":"update","accountId":"a","deviceId":"d","occurTime":"2000-01-01T00:00:04Z","motion":{"phase":"UPDATE"}}`,
			`{"eventId":"beat","accountId":"a","deviceId":"d","occurTime":"2000-01-01T00:00:05Z","heartbeat":{}}`,
		}, "\n"), "traceparent", parent, "tracestate", "x=1")
		if r.Accepted != 6 {
			t.Fatal(r.body)
		}
		traced := map[string]string{}
		for _, rec := range b.records() {
			ev, err := codec.DecodeEvent(rec.Value)
			if err != nil {
				t.Fatal(err)
			}
			if p := kafka.Header(rec, kafka.HeaderTraceParent); p != "" {
				traced[ev.EventId] = p
				if kafka.Header(rec, kafka.HeaderTraceState) != "x=1" {
					t.Errorf("%s: the trace state is lost", ev.EventId)
				}
			}
		}
		ended := map[string]string{}
		for _, s := range spans.Ended() {
			if s.SpanContext().TraceID().String() != parent[3:35] || s.Parent().SpanID().String() != parent[36:52] {
				t.Errorf("span %v is not the caller's child", s.SpanContext())
			}
			for _, a := range s.Attributes() {
				if a.Key == attribute.Key("tocsin.etag.event_id") {
					p, _ := codec.FormatTrace(s.SpanContext())
					ended[a.Value.AsString()] = p
				}
			}
		}
		if diff := cmp.Diff(traced, ended); diff != "" {
			t.Errorf("records and spans differ:\n%s", diff)
		}
		if len(traced) != 3 || traced["first"] == "" || traced["change"] == "" || traced["start"] == "" {
			t.Errorf("traced are %v", traced)
		}
	})
}

// Proves rule L3: the archiver's own heartbeat every 10 s, and at a planned
// stop by when it is back.
func TestBeacon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaults(t)
		cfg.Beacon = true
		b := start(t, cfg)
		time.Sleep(35 * time.Second)
		b.stop()
		events := b.events()
		if len(events) < 4 || len(events) > 5 {
			t.Fatalf("%d heartbeats in 35 s", len(events))
		}
		for i, ev := range events {
			last := i == len(events)-1
			if ev.AccountId != "operator" || ev.DeviceId != "archiver-1" || ev.GetHeartbeat() == nil || (ev.GetHeartbeat().BackBy != nil) != last {
				t.Errorf("heartbeat %d: %s", i, codec.MarshalEventJSON(ev))
			}
		}
		last := events[len(events)-1]
		if wait := last.GetHeartbeat().BackBy.AsTime().Sub(last.OccurTime.AsTime()); wait != 5*time.Minute {
			t.Errorf("back in %v", wait)
		}
	})
}

// Proves that with keys nobody writes without one, and nobody for another's
// account.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaults(t)
		cfg.APIKeysFile = filepath.Join(t.TempDir(), "keys")
		// The SHA-256 of "one".
		if err := os.WriteFile(cfg.APIKeysFile, []byte("7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed a test\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		b := start(t, cfg)
		mine := status("e1", "d", "2000-01-01T00:00:00Z", "ONLINE")
		other := strings.Replace(mine, `"accountId":"a"`, `"accountId":"b"`, 1)
		for _, tc := range []struct {
			key, body string
			status    int
			accepted  int
		}{
			{"", mine, 401, 0},
			{"Bearer two", mine, 401, 0},
			{"Bearer one", other, 403, 0},
			{"Bearer one", mine + "\n" + other, 202, 1},
		} {
			r := b.post("/v1/events", lines, tc.body, "Authorization", tc.key)
			if r.status != tc.status || r.Accepted != tc.accepted {
				t.Errorf("key %q: got %d %s, want %d", tc.key, r.status, r.body, tc.status)
			}
		}
		if n := len(b.records()); n != 1 {
			t.Errorf("%d events are in Kafka, want 1", n)
		}
	})
}

// Proves that a busy archiver says 429 with Retry-After instead of taking on
// more than it may.
func TestTooManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaults(t)
		cfg.MaxRequests = 1
		b := start(t, cfg)
		b.away.Store(true)
		first := make(chan reply, 1)
		go func() { first <- b.post("/v1/events", lines, status("e1", "d", "2000-01-01T00:00:00Z", "ONLINE")) }()
		time.Sleep(time.Second)
		r := b.post("/v1/events", lines, status("e2", "d", "2000-01-01T00:00:00Z", "ONLINE"))
		if r.status != http.StatusTooManyRequests || r.retryAfter != "1" {
			t.Errorf("got %d %s, Retry-After %q", r.status, r.body, r.retryAfter)
		}
		if r := <-first; r.status != http.StatusServiceUnavailable {
			t.Errorf("the one before: got %d %s", r.status, r.body)
		}
		b.away.Store(false)
	})
}

// Proves that settings that would not work are refused by name, with the way
// out, above all an address that others can reach without keys.
func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--ingest.listen=0.0.0.0:7101"}, "--ingest.api-keys-file"},
		{[]string{"--ingest.listen=:7101"}, "--ingest.api-keys-file"},
		{[]string{"--ingest.listen=cam.example:7101"}, "--ingest.api-keys-file"},
		{[]string{"--ingest.listen=[::1]:7101"}, ""},
		{[]string{"--ingest.listen=0.0.0.0:7101", "--ingest.api-keys-file=keys"}, ""},
		{[]string{"--archiver.id=a b"}, "archiver.id"},
		{[]string{"--ingest.refresh=1s"}, "ingest.refresh"},
		{[]string{"--ingest.ack-timeout=0s"}, "ingest.ack-timeout"},
		{[]string{"--ingest.max-events=0"}, "ingest.max-events"},
		{[]string{"--ingest.max-events=200000"}, "ingest.max-buffered"},
		{[]string{"--ingest.duplicate-window=-1"}, "ingest.duplicate-window"},
	} {
		var cfg Config
		k, err := kong.New(&cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, err = k.Parse(tc.args)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: got %v, want %q", tc.args, err, tc.want)
		}
	}
}
