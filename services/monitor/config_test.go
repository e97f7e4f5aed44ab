package monitor

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/kafka"
)

// parse fills a Config from the command line and the environment.
func parse(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	var settings struct {
		Config `embed:""`
	}
	_, err := config.Program{Name: "monitor", Settings: &settings}.Parse(args)
	return settings.Config, err
}

// TestDefaults proves the defaults of rule H1.
func TestDefaults(t *testing.T) {
	cfg, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	want := Holds{Offline: 300 * time.Second, InternetOffline: 300 * time.Second, Online: 95 * time.Second}
	if cfg.Hold != want || cfg.DataCenter != "" || cfg.Group != "tocsin-monitor" || cfg.Members != 1 {
		t.Errorf("defaults %+v", cfg)
	}
}

// TestSettingsByName proves the names that the contract fixes, and that the old
// system's variable is read where ours is not set.
func TestSettingsByName(t *testing.T) {
	t.Setenv("EEN_AGENT_DATACENTER", "c001")
	cfg, err := parse(t, "--hold.offline=20s", "--hold.internet-offline=0s", "--hold.online=5m")
	if err != nil {
		t.Fatal(err)
	}
	if want := (Holds{20 * time.Second, 0, 5 * time.Minute}); cfg.Hold != want || cfg.DataCenter != "c001" {
		t.Errorf("settings %+v", cfg)
	}
	t.Setenv("TOCSIN_DATACENTER", "c002")
	if cfg, err = parse(t); err != nil || cfg.DataCenter != "c002" {
		t.Errorf("data centre %q, %v", cfg.DataCenter, err)
	}
}

// TestBadConfig proves that each setting that cannot be is refused by its name.
func TestBadConfig(t *testing.T) {
	for want, arg := range map[string]string{
		"hold.offline":          "--hold.offline=-1s",
		"hold.internet-offline": "--hold.internet-offline=1000h",
		"hold.online":           "--hold.online=-1ms",
		"datacenter":            "--datacenter=a/b",
		"monitor.members":       "--monitor.members=0",
		"monitor.group":         "--monitor.group=",
		"monitor.expected-rate": "--monitor.expected-rate=-1",
	} {
		if _, err := parse(t, arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// TestStampedBy proves that the filter reads the archiver's header and nothing
// else: a record without one is nobody's.
func TestStampedBy(t *testing.T) {
	rec := &kgo.Record{Value: []byte{0xff}}
	if stampedBy(rec, "c001") {
		t.Error("a record without a stamp is taken")
	}
	rec.Headers = []kgo.RecordHeader{{Key: kafka.HeaderType}, {Key: kafka.HeaderDataCenter, Value: []byte("c001")}}
	if !stampedBy(rec, "c001") || stampedBy(rec, "c00") {
		t.Error("the stamp is not compared as it is")
	}
}
