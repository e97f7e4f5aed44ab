package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/twmb/franz-go/pkg/kerr"
)

func isExists(err error) bool { return errors.Is(err, kerr.TopicAlreadyExists) }

// Kafka is an Apache Kafka broker in a container. Its port on this machine
// stays the same when it is killed and started again.
type Kafka struct {
	*Broker
	Container testcontainers.Container
}

// kafkaImage is the name of the broker's image, built if it is not there yet.
var kafkaImage = sync.OnceValues(func() (string, error) {
	build := filepath.Join(Root(), "deploy", "images", "kafka", "build")
	out, err := exec.Command(build).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return "", fmt.Errorf("build the image of Apache Kafka: %w", err)
	}
	lines := strings.Fields(string(out))
	return lines[len(lines)-1], nil
})

// StartKafka starts a broker of the test's own, to be killed and started again.
// It returns when it has taken and given a record.
func StartKafka(t testing.TB) *Kafka {
	t.Helper()
	NeedContainers(t)
	k := newKafka(t)
	t.Cleanup(func() {
		if t.Failed() {
			k.log(t)
		}
		if err := k.remove(); err != nil {
			t.Error(err)
		}
	})
	return k
}

// shared is the one broker for all tests that leave it as it is: a broker costs
// seconds of processor time to start.
var shared struct {
	once  sync.Once
	kafka *Kafka // nil when it did not start
}

// ShareKafka gives the test names of its own on a broker that others use too.
func ShareKafka(t testing.TB) *Broker {
	t.Helper()
	NeedContainers(t)
	shared.once.Do(func() { shared.kafka = newKafka(t) })
	if shared.kafka == nil {
		t.Fatal("Apache Kafka did not start; the test that tried it first says why")
	}
	t.Cleanup(func() {
		if t.Failed() {
			shared.kafka.log(t)
		}
	})
	return &Broker{Name: "kafka", Address: shared.kafka.Address, Prefix: fmt.Sprintf("tocsin-%08x.", rand.Uint32()), t: t}
}

func removeShared() {
	if shared.kafka == nil {
		return
	}
	if err := shared.kafka.remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// newKafka starts a broker that its caller has to remove.
func newKafka(t testing.TB) *Kafka {
	t.Helper()
	image, err := kafkaImage()
	if err != nil {
		t.Fatal(err)
	}
	// The reaper is an image of its own that an isolated machine does not have;
	// `make integration` looks after what a killed test leaves behind.
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") //nolint:usetesting // parallel tests need it, and t.Setenv refuses those

	for try := 1; ; try++ {
		k, err := startKafka(t, image)
		if err == nil {
			k.ready()
			return k
		}
		if k != nil {
			err = errors.Join(err, k.remove())
		}
		// Somebody else may have taken the port meanwhile.
		if try == 3 || !strings.Contains(err.Error(), "port") {
			t.Fatalf("start Apache Kafka: %v", err)
		}
		t.Logf("start Apache Kafka, attempt %d: %v", try, err)
	}
}

func (k *Kafka) remove() error {
	if err := testcontainers.TerminateContainer(k.Container, testcontainers.StopTimeout(0)); err != nil {
		return fmt.Errorf("remove the container of Apache Kafka: %w", err)
	}
	return nil
}

// quiet keeps testcontainers from reporting each step.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// Kill is kill -9; Start starts the same broker again, with what it has stored.
func (k *Kafka) Kill() {
	k.t.Helper()
	at := time.Duration(0)
	if err := k.Container.Stop(k.t.Context(), &at); err != nil {
		k.t.Fatalf("kill Apache Kafka: %v", err)
	}
}

// Start starts a killed broker and returns when it works again.
func (k *Kafka) Start() {
	k.t.Helper()
	if err := k.Container.Start(k.t.Context()); err != nil {
		k.t.Fatalf("start Apache Kafka again: %v", err)
	}
	k.ready()
}

func (k *Kafka) ready() {
	k.t.Helper()
	took := Eventually(k.t, 2*time.Minute, "Apache Kafka takes and gives a record", func() error {
		ctx, cancel := context.WithTimeout(k.t.Context(), 5*time.Second)
		defer cancel()
		return k.probe(ctx)
	})
	k.t.Logf("Apache Kafka on %s works %v after its container started", k.Address, took.Round(time.Millisecond))
}

// startKafka returns the container also where it did not start, to be removed.
func startKafka(t testing.TB, image string) (*Kafka, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	// Chosen first and fixed, since the broker has to advertise it.
	port := freePort(t, 20000, 29999)
	inside := network.MustParsePort("9092/tcp")
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{
		Started: true,
		Logger:  quiet{},
		ContainerRequest: testcontainers.ContainerRequest{
			Image:        image,
			ExposedPorts: []string{"9092/tcp"},
			Labels:       map[string]string{"tocsin.integration": os.Getenv("TOCSIN_INTEGRATION_RUN")},
			HostConfigModifier: func(host *container.HostConfig) {
				host.PortBindings = network.PortMap{inside: {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: fmt.Sprint(port)}}}
			},
			Env: map[string]string{
				"KAFKA_NODE_ID":                                  "1",
				"KAFKA_PROCESS_ROLES":                            "broker,controller",
				"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@localhost:9093",
				"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
				"KAFKA_LISTENERS":                                "HOST://:9092,BROKER://:19092,CONTROLLER://:9093",
				"KAFKA_ADVERTISED_LISTENERS":                     fmt.Sprintf("HOST://127.0.0.1:%d,BROKER://localhost:19092", port),
				"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "HOST:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
				"KAFKA_INTER_BROKER_LISTENER_NAME":               "BROKER",
				"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
				"KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS":             "3",
				"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
				"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
				"KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS":     "3",
				// The check for transactions that are left open (design: partition runtime).
				"KAFKA_TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS": "1000",
				"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":                            "0",
				// A lone node need not wait to elect itself after a restart.
				"KAFKA_CONTROLLER_QUORUM_FETCH_TIMEOUT_MS":               "500",
				"KAFKA_CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS":            "200",
				"KAFKA_CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS":        "200",
				"KAFKA_AUTO_CREATE_TOPICS_ENABLE":                        "false",
				"KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
				"KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR":            "1",
				"KAFKA_LOG_DIRS":  "/var/lib/kafka/data",
				"KAFKA_HEAP_OPTS": "-Xms256m -Xmx256m",
				// A third less processor time to start than with its own options; it
				// does not live long enough to need them.
				"KAFKA_JVM_PERFORMANCE_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true",
			},
		},
	})
	var k *Kafka
	if c != nil {
		k = &Kafka{Container: c, Broker: &Broker{Name: "kafka", Address: fmt.Sprintf("127.0.0.1:%d", port), Prefix: "tocsin.", t: t}}
	}
	return k, err
}

// log prints the last lines of the broker's log.
func (k *Kafka) log(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	logs, err := k.Container.Logs(ctx)
	if err != nil {
		t.Logf("read the container's log: %v", err)
		return
	}
	defer logs.Close()
	var o output
	buf := make([]byte, 64<<10)
	for {
		n, err := logs.Read(buf)
		_, _ = o.Write(buf[:n])
		if err != nil {
			break
		}
	}
	t.Logf("---- log of Apache Kafka\n%s", o.tail(40))
}
