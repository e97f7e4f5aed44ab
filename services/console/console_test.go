package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/kafkatest"
)

// running is a console in a bubble, with a client that reaches it.
type running struct {
	*Service
	http *http.Client
	url  string
	stop func() error
}

func start(t *testing.T, c *kafkatest.Cluster, listen string) *running {
	t.Helper()
	s, err := New(Config{Listen: config.NewAddress(listen)}, c.Env(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	transport := &http.Transport{DialContext: c.Net.Dial}
	r := &running{Service: s, http: &http.Client{Transport: transport}, url: "http://" + listen}
	r.stop = sync.OnceValue(func() error {
		transport.CloseIdleConnections()
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return r
}

func (r *running) awaitReady(t *testing.T) {
	t.Helper()
	for range 1000 {
		if r.Ready() == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("not ready: %v", r.Ready())
}

// do makes a request and reads the answer.
func (r *running) do(t *testing.T, method, path, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

func (r *running) put(t *testing.T, body string) (int, string) {
	t.Helper()
	code, answer, _ := r.do(t, "PUT", "/v1/settings", body)
	return code, answer
}

const harbour = `accounts:
  - id: demo
    name: Harbour Street
    holds: {offline: 20s}
    sites: [{id: quay}]
    users: [{id: ann, email: ann@harbour.test, admin: true, levels: [SYSTEM]}]
    devices: [{id: cam-1, name: Front door, site: quay}, {id: cam-2}]
`

// A write is in both topics in one transaction, keyed and placed as the
// contract says, and a read right after it shows it.
func TestPutAndGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 3)
		r := start(t, c, "127.0.0.1:7100")
		r.awaitReady(t)
		code, answer := r.put(t, harbour)
		if code != 200 || strings.Count(answer, `"created"`) != 5 {
			t.Fatalf("%d %s", code, answer)
		}
		code, text, h := r.do(t, "GET", "/v1/settings?account=demo", "")
		if code != 200 || !strings.Contains(text, `{id: "cam-1", version: 1, name: "Front door", kind: CAMERA, site: "quay"}`) || !strings.HasPrefix(h.Get("Content-Type"), "application/yaml") {
			t.Errorf("%d %s", code, text)
		}
		code, text, _ = r.do(t, "GET", "/v1/settings?versions=false", "", "Accept", "application/json")
		if code != 200 || !json.Valid([]byte(text)) || strings.Contains(text, "version") {
			t.Errorf("%d %s", code, text)
		}
		code, text, _ = r.do(t, "GET", "/v1/settings?account=other", "")
		if code != 404 || !strings.Contains(text, "there is no account other") {
			t.Errorf("%d %s", code, text)
		}

		keys := map[string]int{}
		for _, rec := range consume(t, c, c.Topics.AccountSettings.Name, c.Topics.DeviceSettings.Name) {
			keys[string(rec.Key)]++
			by := string(rec.Key)
			if rec.Topic == c.Topics.AccountSettings.Name {
				by = "demo"
			}
			if want := kafka.PartitionFor(by, 3); rec.Partition != want {
				t.Errorf("%s is in partition %d of %s, want %d", rec.Key, rec.Partition, rec.Topic, want)
			}
			if rec.Topic == c.Topics.DeviceSettings.Name {
				d := &settingsv1.DeviceSettings{}
				if err := d.UnmarshalVT(rec.Value); err != nil || d.GetHolds().GetOffline().AsDuration() != 20*time.Second || !d.GetActive() {
					t.Errorf("%s = %v, %v", rec.Key, d, err)
				}
			}
		}
		for _, k := range []string{"demo/account/demo", "demo/site/quay", "demo/user/ann", "demo/device/cam-1", "demo/device/cam-2", "demo/cam-1", "demo/cam-2"} {
			if keys[k] != 1 {
				t.Errorf("%d records of %s, want 1; there are %v", keys[k], k, keys)
			}
		}
		if code, answer := r.put(t, harbour); code != 200 || !strings.Contains(answer, `"changes": []`) {
			t.Errorf("the same again: %d %s", code, answer)
		}
	})
}

// consume reads topics to their end, committed only.
func consume(t *testing.T, c *kafkatest.Cluster, topics ...string) []*kgo.Record {
	t.Helper()
	cl := c.Client(t, kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	var out []*kgo.Record
	for range 20 { // longer than a fetch waits
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		out = append(out, cl.PollFetches(ctx).Records()...)
		cancel()
	}
	return out
}

// A bad write is refused whole with line and field, as JSON and as text; what
// was there stays, also after a restart of the console.
func TestBadWritesChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 2)
		r := start(t, c, "127.0.0.1:7100")
		r.awaitReady(t)
		r.put(t, harbour)
		_, before, _ := r.do(t, "GET", "/v1/settings", "")

		code, answer := r.put(t, "accounts:\n  - id: demo\n    name: New\n    holds: {ofline: 3s}\n")
		var f struct {
			Error    string
			Problems []struct {
				Line, Column  int
				Field, Reason string
			}
		}
		if err := json.Unmarshal([]byte(answer), &f); err != nil || code != 400 || len(f.Problems) != 1 || f.Problems[0].Line != 4 || f.Problems[0].Column != 13 || f.Problems[0].Field != "accounts[0].holds.ofline" {
			t.Errorf("%d %v %s", code, err, answer)
		}
		code, text, _ := r.do(t, "PUT", "/v1/settings", "accounts: [{id: 00011557}]", "Accept", "text/plain")
		if code != 400 || text != "the settings are refused, nothing was changed: line 1, column 17: accounts[0].id: 00011557 is a number to YAML; put the id in quotes: \"00011557\"\n" {
			t.Errorf("%d %s", code, text)
		}
		code, text, _ = r.do(t, "PUT", "/v1/settings", strings.Repeat("#", 9<<20))
		if code != 413 || !strings.Contains(text, "8388608 bytes") {
			t.Errorf("%d %.200s", code, text)
		}
		code, text, _ = r.do(t, "PUT", "/v1/settings?prune=perhaps", harbour)
		if code != 400 {
			t.Errorf("%d %s", code, text)
		}
		code, text = r.put(t, "accounts: [{id: demo, name: Two}, {id: demo2, version: 0, devices: [{id: d, site: nowhere}]}]")
		if code != 400 || !strings.Contains(text, "nowhere") {
			t.Errorf("%d %s", code, text)
		}
		if _, after, _ := r.do(t, "GET", "/v1/settings", ""); after != before {
			t.Errorf("before %s\nafter %s", before, after)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		again := start(t, c, "127.0.0.1:7100")
		again.awaitReady(t)
		if _, after, _ := again.do(t, "GET", "/v1/settings", ""); after != before {
			t.Errorf("after a restart %s\nwant %s", after, before)
		}
	})
}

// Of writers that all start from the same version one wins and the others get
// 409, whether they use one console or several.
func TestConcurrentWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 2)
		a, b := start(t, c, "127.0.0.1:7100"), start(t, c, "127.0.0.1:7200")
		a.awaitReady(t)
		b.awaitReady(t)
		a.put(t, harbour)
		for round := range 3 {
			codes := make([]int, 8)
			var wg sync.WaitGroup
			for i := range codes {
				r := []*running{a, b}[i%2]
				wg.Go(func() {
					var answer string
					codes[i], answer = r.put(t, fmt.Sprintf(`accounts: [{id: demo, version: %d, name: "writer %d of round %d"}]`, round+1, i, round))
					if codes[i] == 409 && !strings.Contains(answer, fmt.Sprintf("account demo has version %d by now, this write is based on %d", round+2, round+1)) {
						t.Errorf("409 %s", answer)
					}
				})
			}
			wg.Wait()
			count := map[int]int{}
			for _, code := range codes {
				count[code]++
			}
			if count[200] != 1 || count[409] != len(codes)-1 {
				t.Fatalf("round %d: answers %v", round, count)
			}
		}
	})
}

// Though a console reads the log late, a write is decided on all that others
// wrote before, and an answer means that this console shows it.
func TestReadYourWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		// Every fetch is held back by half a second.
		c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			c.SleepControl(func() { time.Sleep(500 * time.Millisecond) })
			return nil, nil, false
		})
		a, b := start(t, c, "127.0.0.1:7100"), start(t, c, "127.0.0.1:7200")
		a.awaitReady(t)
		b.awaitReady(t)
		a.put(t, harbour)
		for i := range 3 {
			a.put(t, fmt.Sprintf(`accounts: [{id: demo, name: "name %d"}]`, i))
			if _, text, _ := a.do(t, "GET", "/v1/settings", ""); !strings.Contains(text, fmt.Sprintf("name %d", i)) {
				t.Errorf("after write %d: %s", i, text)
			}
			if code, answer := b.put(t, fmt.Sprintf(`accounts: [{id: demo, version: %d, name: "old"}]`, i+1)); code != 409 {
				t.Errorf("a write on version %d at the other console: %d %s", i+1, code, answer)
			}
		}
	})
}

// A console that dies between producing and committing leaves nothing: the
// next write takes over its transaction and goes through, at once.
func TestCrashBeforeCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		r := start(t, c, "127.0.0.1:7100")
		r.awaitReady(t)
		dead := c.Client(t, kgo.TransactionalID("tocsin.console.settings"))
		if err := dead.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		half := &kgo.Record{Topic: c.Topics.AccountSettings.Name, Partition: 0, Key: []byte("demo/site/half"), Value: site(t, "half")}
		if err := dead.ProduceSync(context.Background(), half).FirstErr(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if code, answer := r.put(t, harbour); code != 200 {
			t.Fatalf("%d %s", code, answer)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the write waited %v for the dead one's transaction", took)
		}
		if _, text, _ := r.do(t, "GET", "/v1/settings", ""); strings.Contains(text, "half") || !strings.Contains(text, "Harbour") {
			t.Error(text)
		}
		// The dead one wakes up: it may not commit any more.
		if err := dead.EndTransaction(context.Background(), kgo.TryCommit); err == nil {
			t.Error("the dead console's commit was taken")
		}
		if _, text, _ := r.do(t, "GET", "/v1/settings", ""); strings.Contains(text, "half") {
			t.Error(text)
		}
	})
}

func site(t *testing.T, id string) []byte {
	t.Helper()
	v, err := (&settingsv1.Setting{AccountId: "demo", Version: 1, Object: &settingsv1.Setting_Site{Site: &settingsv1.Site{SiteId: id}}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A commit that is refused leaves nothing and is a 503; so is a broker that
// does not answer, and the next write goes through.
func TestKafkaTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		r := start(t, c, "127.0.0.1:7100")
		r.awaitReady(t)
		// TOPIC_AUTHORIZATION_FAILED: not to be tried again.
		c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
			p := req.(*kmsg.ProduceRequest)
			resp := p.ResponseKind().(*kmsg.ProduceResponse)
			for _, topic := range p.Topics {
				rt := kmsg.NewProduceResponseTopic()
				rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
				for _, part := range topic.Partitions {
					rp := kmsg.NewProduceResponseTopicPartition()
					rp.Partition, rp.ErrorCode = part.Partition, 29
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
			}
			return resp, nil, true
		})
		code, answer, h := r.do(t, "PUT", "/v1/settings", harbour)
		if code != 503 || h.Get("Retry-After") == "" || !strings.Contains(answer, "nothing was written") {
			t.Errorf("%d %s", code, answer)
		}
		if _, text, _ := r.do(t, "GET", "/v1/settings", ""); text != "accounts: []\n" {
			t.Error(text)
		}
		if code, answer := r.put(t, harbour); code != 200 {
			t.Errorf("%d %s", code, answer)
		}
	})
}

// Without Kafka the console serves and says so: 503 with Retry-After, never an
// empty answer that looks like no settings.
func TestKafkaAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		down := *c
		down.Net.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasSuffix(address, ":9092") {
				return nil, errors.New("connection refused")
			}
			return c.Net.Dial(ctx, network, address)
		}
		r := start(t, &down, "127.0.0.1:7100")
		time.Sleep(time.Second)
		if r.Ready() == nil {
			t.Error("ready without Kafka")
		}
		for _, method := range []string{"GET", "PUT"} {
			code, answer, h := r.do(t, method, "/v1/settings", harbour)
			if code != 503 || h.Get("Retry-After") != "2" {
				t.Errorf("%s: %d %s", method, code, answer)
			}
		}
		if code, page, _ := r.do(t, "GET", "/", ""); code != 200 || !strings.Contains(page, "waiting for Kafka") {
			t.Errorf("%d %s", code, page)
		}
	})
}

// Other sites' pages in the visitor's browser can neither write nor read.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		r := start(t, c, "127.0.0.1:7100")
		r.awaitReady(t)
		for name, h := range map[string][]string{
			"other origin":     {"Origin", "http://evil.test"},
			"fetch metadata":   {"Sec-Fetch-Site", "cross-site"},
			"rebound name":     {"Host", "evil.test:7100"},
			"rebound same way": {"Host", "evil.test", "Origin", "http://evil.test", "Sec-Fetch-Site", "same-origin"},
		} {
			if code, answer, _ := r.do(t, "PUT", "/v1/settings", harbour, h...); code != 403 && code != 421 {
				t.Errorf("%s: %d %s", name, code, answer)
			}
		}
		if code, _, _ := r.do(t, "GET", "/v1/settings", "", "Host", "evil.test"); code != 421 {
			t.Errorf("read under another name: %d", code)
		}
		for _, h := range [][]string{{"Host", "localhost:7100"}, {"Host", "[::1]:7100"}, {"Origin", "http://127.0.0.1:7100", "Sec-Fetch-Site", "same-origin"}} {
			if code, answer, _ := r.do(t, "PUT", "/v1/settings", harbour, h...); code != 200 {
				t.Errorf("%v: %d %s", h, code, answer)
			}
		}
	})
}

// Until there is a sign-in the console refuses to be reachable from elsewhere.
func TestLoopbackOnly(t *testing.T) {
	for address, ok := range map[string]bool{"127.0.0.1:7100": true, "[::1]:7100": true, "localhost:0": true, ":7100": false, "0.0.0.0:7100": false, "192.168.1.4:7100": false, "host:7100": false} {
		if err := (Config{Listen: config.NewAddress(address)}).Validate(); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// A page that is open gets what changed within a second, and does not keep
// the console from stopping.
func TestLivePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		r := start(t, c, "127.0.0.1:7100")
		r.awaitReady(t)
		resp, err := r.http.Get(r.url + "/live")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var mu sync.Mutex
		var got strings.Builder
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b := make([]byte, 32<<10)
			for {
				n, err := resp.Body.Read(b)
				mu.Lock()
				got.Write(b[:n])
				mu.Unlock()
				if err != nil {
					return
				}
			}
		}()
		streamed := func() string {
			mu.Lock()
			defer mu.Unlock()
			s := got.String()
			got.Reset()
			return s
		}
		time.Sleep(time.Minute) // longer than the server's limit for a request
		if s := streamed(); strings.Count(s, "event: section") != 3 || !strings.Contains(s, "No device has been heard of yet") {
			t.Errorf("first %s", s)
		}
		r.put(t, harbour)
		produceDevice(t, c, "demo/cam-1")
		time.Sleep(time.Second)
		if s := streamed(); !strings.Contains(s, "Front door") || strings.Contains(s, `"id":"inbox"`) {
			t.Errorf("then %s", s)
		}
		began := time.Now()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
		<-ended
	})
}

func produceDevice(t *testing.T, c *kafkatest.Cluster, key string) {
	t.Helper()
	cl := c.Client(t)
	value := deviceState(t)
	if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: c.Topics.DeviceState.Name, Partition: 0, Key: []byte(key), Value: value}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func deviceState(t *testing.T) []byte {
	t.Helper()
	v, err := (&statev1.DeviceState{Confirmed: statev1.DeviceState_ONLINE, ConfirmedSinceUnixMs: time.Now().UnixMilli(), Last: &statev1.DeviceState_Sample{State: statev1.DeviceState_ONLINE}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return v
}
