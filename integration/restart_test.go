package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tocsin/tocsin/integration/harness"
	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
)

// A monitor that is killed in the middle of a hold and started again tells the
// outage once, at the instant it would have been told anyway (case B01).
func TestMonitorKilledInHold(t *testing.T) {
	t.Parallel()
	harness.OnEachBroker(t, func(t *testing.T, b *harness.Broker) {
		// Longer than the session of the dead member, which its successor waits out.
		const offline = 15 * time.Second
		s := harness.StartSuite(t, b, harness.Options{
			Settings: acme,
			Args:     map[string][]string{"monitor": {"--hold.offline", offline.String()}},
		})
		s.Post(harness.StatusAt("acme", "yard", "ONLINE", time.Now()))
		down := time.Now()
		s.Post(harness.StatusAt("acme", "yard", "OFFLINE", down))
		harness.Pass(2 * time.Second)
		s.Monitor.Kill()
		harness.Pass(time.Second)
		s.Monitor.Start()
		t.Logf("monitor ready again after %v", s.Monitor.Ready(patience).Round(time.Millisecond))

		wantAt(t, s.Sink.Await(1, patience)[0], down.Add(offline))
		harness.Pass(2 * time.Second)
		s.Sink.Exactly(1)
		if got := stages(t, b, "yard"); !slices.Equal(got, []string{"OFFLINE PENDING", "OFFLINE DUE"}) {
			t.Errorf("the outage's notifications are %v, want it pending and due, once each", got)
		}
	})
}

// A hold that ends while no monitor runs is told soon after one runs again.
func TestMonitorDownAtDeadline(t *testing.T) {
	t.Parallel()
	harness.OnEachBroker(t, func(t *testing.T, b *harness.Broker) {
		const offline = 3 * time.Second
		s := harness.StartSuite(t, b, harness.Options{
			Settings: acme,
			Args:     map[string][]string{"monitor": {"--hold.offline", offline.String()}},
		})
		s.Post(harness.StatusAt("acme", "yard", "OFFLINE", time.Now()))
		harness.Pass(time.Second)
		if code := s.Monitor.Stop(20 * time.Second); code != 0 {
			t.Errorf("the monitor stopped with exit code %d, want 0", code)
		}
		harness.Pass(offline)
		s.Sink.Exactly(0)
		s.Monitor.Start()
		started := time.Now()
		mail := s.Sink.Await(1, patience)[0]
		t.Logf("mailed %v after the monitor was started again", mail.At.Sub(started).Round(time.Millisecond))
		wantMail(t, mail, "[Offline] Yard", "")
	})
}

// A gateway that is killed after it decided a mail, and before a relay took it,
// sends that very mail once when it is back.
func TestGatewayKilledAfterDecision(t *testing.T) {
	t.Parallel()
	harness.OnEachBroker(t, func(t *testing.T, b *harness.Broker) {
		s := harness.StartSuite(t, b, harness.Options{Settings: acme})
		s.Sink.Stop()
		s.Post(harness.MotionAt("acme", "yard", "START", "m1", "", time.Now()))
		harness.Eventually(t, patience, "a first attempt that failed", func() error {
			return attempted(t, b)
		})
		s.Gateway.Kill()
		s.Sink.Start()
		s.Gateway.Start()
		started := time.Now()
		mail := s.Sink.Await(1, 2*patience)[0]
		wantMail(t, mail, "[Motion] Yard", "")
		t.Logf("mailed %v after the gateway was started again", mail.At.Sub(started).Round(time.Millisecond))
		harness.Pass(5 * time.Second)
		s.Sink.Exactly(1)
	})
}

// While Kafka is away the archiver takes nothing: 503 with Retry-After, never a
// 2xx. When it is back all goes on, and what was told before is not told again.
func TestKafkaKilled(t *testing.T) {
	t.Parallel()
	k := harness.StartKafka(t)
	s := harness.StartSuite(t, k.Broker, harness.Options{Settings: acme})
	s.Post(harness.MotionAt("acme", "yard", "START", "m1", "", time.Now()))
	s.Sink.Await(1, patience)

	k.Kill()
	body := `{"accountId":"acme","deviceId":"yard","motion":{"phase":"START","spanId":"m2"}}`
	client := http.Client{Timeout: 30 * time.Second}
	for range 3 {
		resp, err := client.Post(s.Ingest+"/v1/events", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatalf("post an event while Kafka is away: %v", err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("an event while Kafka is away: %s, Retry-After %q, want 503 and a time", resp.Status, resp.Header.Get("Retry-After"))
		}
	}

	k.Start()
	harness.Eventually(t, patience, "the archiver takes events again", func() error { return s.TryPost(body) })
	s.Sink.Await(2, patience)
	harness.Pass(2 * time.Second)
	s.Sink.Exactly(2)
	for _, p := range s.Processes() {
		p.Ready(patience)
	}
}

// attempted is nil when an attempt to mail something has failed.
func attempted(t *testing.T, b *harness.Broker) error {
	t.Helper()
	seen := map[deliveryv1.Outcome_Reason]int{}
	for _, rec := range b.Records(b.Topic("deliveries")) {
		if harness.Header(rec, "type") != "tocsin.delivery.v1.MailOutcome" {
			continue
		}
		var o deliveryv1.MailOutcome
		if err := proto.Unmarshal(rec.Value, &o); err != nil {
			t.Fatalf("mail outcome at offset %d: %v", rec.Offset, err)
		}
		if o.Reason == deliveryv1.Outcome_RETRYING {
			return nil
		}
		seen[o.Reason]++
	}
	return fmt.Errorf("outcomes so far: %v", seen)
}
