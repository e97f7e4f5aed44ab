package config_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tocsin/tocsin/services/internal/config"
)

type holds struct {
	Offline time.Duration `name:"offline" default:"300s" help:"Wait before Offline is told."`
}

type relay struct {
	Host     string `name:"host" default:"localhost" help:"Relay."`
	TLS      string `name:"tls" enum:"required,none" default:"required" help:"TLS."`
	Username string `name:"username" help:"User."`
	Password string `name:"password" secret:"" help:"Password."`
}

func (r relay) Validate() error {
	if r.Username != "" && r.Password == "" {
		return errors.New("smtp.password: needed with smtp.username")
	}
	return nil
}

type broker struct {
	Brokers []string `name:"brokers" default:"127.0.0.1:9092" help:"Brokers."`
}

type settings struct {
	Hold       holds           `embed:"" prefix:"hold."`
	SMTP       relay           `embed:"" prefix:"smtp."`
	Kafka      broker          `embed:"" prefix:"kafka."`
	Every      []time.Duration `name:"every" help:"Several."`
	Fast       bool            `name:"fast" help:"A switch."`
	Members    int             `name:"members" default:"1" help:"A number."`
	DataCenter string          `name:"datacenter" env:"EEN_AGENT_DATACENTER" help:"Filter."`
	Listen     config.Address  `name:"listen" default:"127.0.0.1:7199" help:"Address."`
}

// parse runs one command line against an optional settings file.
func parse(t *testing.T, yaml string, args ...string) (settings, string, error) {
	t.Helper()
	var s settings
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "tocsin.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	var out bytes.Buffer
	p := config.Program{Name: "test", Settings: &s, Stdout: &out, Stderr: &out}
	_, err := p.Parse(args)
	return s, out.String(), err
}

// Proves that a flag beats the environment, the environment the file, and the
// file the default, for one setting at a time.
func TestStrength(t *testing.T) {
	const file = "hold:\n  offline: 10s\n"
	for _, tt := range []struct {
		name, yaml, env string
		args            []string
		want            time.Duration
	}{
		{name: "default", want: 300 * time.Second},
		{name: "file", yaml: file, want: 10 * time.Second},
		{name: "environment over file", yaml: file, env: "20s", want: 20 * time.Second},
		{name: "flag over both", yaml: file, env: "20s", args: []string{"--hold.offline", "30s"}, want: 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.env != "" {
				t.Setenv("TOCSIN_HOLD_OFFLINE", tt.env)
			}
			s, _, err := parse(t, tt.yaml, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if s.Hold.Offline != tt.want {
				t.Errorf("hold.offline = %v, want %v", s.Hold.Offline, tt.want)
			}
		})
	}
}

// Proves that each kind of value reads the same from a file as from a flag.
func TestKindsInFile(t *testing.T) {
	got, _, err := parse(t, `
kafka:
  brokers: [a:1, b:2]
every: [1s, 2m]
fast: true
members: 3
smtp: {host: "mail,example", tls: none}
datacenter: 008
`)
	if err != nil {
		t.Fatal(err)
	}
	byFlag, _, err := parse(t, "", "--kafka.brokers=a:1,b:2", "--every=1s,2m", "--fast", "--members=3",
		"--smtp.host=mail,example", "--smtp.tls=none", "--datacenter=008")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(byFlag, got, cmp.AllowUnexported(config.Address{})); diff != "" {
		t.Errorf("file differs from flags (-flags +file):\n%s", diff)
	}
	if got.DataCenter != "008" || got.Members != 3 || len(got.Every) != 2 {
		t.Errorf("read %+v", got)
	}
}

// Proves that a second variable is read when the first is absent, and only then.
func TestOtherVariable(t *testing.T) {
	t.Setenv("EEN_AGENT_DATACENTER", "c001")
	s, _, err := parse(t, "datacenter: fromfile")
	if err != nil || s.DataCenter != "c001" {
		t.Errorf("datacenter = %q, %v; want c001", s.DataCenter, err)
	}
	t.Setenv("TOCSIN_DATACENTER", "c002")
	s, _, err = parse(t, "")
	if err != nil || s.DataCenter != "c002" {
		t.Errorf("datacenter = %q, %v; want c002", s.DataCenter, err)
	}
}

// Proves that everything not understood is an error of exit code 2 that names
// the setting, the line where there is one, and the likely word.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name, yaml string
		env        map[string]string
		args       []string
		want       []string
	}{
		{name: "flag", args: []string{"--hold.ofline", "1s"}, want: []string{"--hold.ofline", "--hold.offline"}},
		{name: "variable", env: map[string]string{"TOCSIN_HOLD_OFLINE": "1s"}, want: []string{"TOCSIN_HOLD_OFLINE", "did you mean TOCSIN_HOLD_OFFLINE?"}},
		{name: "key", yaml: "fast: true\nkafka:\n  brokrs: x\n", want: []string{"tocsin.yaml: line 3", "kafka.brokrs", "did you mean kafka.brokers?"}},
		{name: "group", yaml: "kafak:\n  brokers: x\n", want: []string{"line 1", "unknown key kafak", "kafka"}},
		{name: "two at once", yaml: "nonsense: 1\nother: 2\n", want: []string{"line 1: unknown key nonsense", "line 2: unknown key other"}},
		{name: "duration in file", yaml: "hold:\n  offline: soon\n", want: []string{"line 2", "hold.offline", "soon"}},
		{name: "duration without unit", args: []string{"--hold.offline=300"}, want: []string{"--hold.offline", "300"}},
		{name: "duration in variable", env: map[string]string{"TOCSIN_HOLD_OFFLINE": "5 min"}, want: []string{"--hold.offline", "TOCSIN_HOLD_OFFLINE"}},
		{name: "list for one", yaml: "members: [1, 2]\n", want: []string{"line 1", "members", "not a list"}},
		{name: "group for one", yaml: "members: {a: 1}\n", want: []string{"line 1", "members", "a value is expected"}},
		{name: "one for a group", yaml: "kafka: here\n", want: []string{"line 1", "kafka", "expected below"}},
		{name: "no value", yaml: "members:\n", want: []string{"line 1", "members", "no value"}},
		{name: "twice", yaml: "kafka.brokers: a:1\nkafka: {brokers: b:1}\n", want: []string{"line 2", "kafka.brokers", "line 1"}},
		{name: "same key", yaml: "fast: true\nfast: false\n", want: []string{"fast"}},
		{name: "broken YAML", yaml: "kafka: [a\n", want: []string{"tocsin.yaml: line"}},
		{name: "config in file", yaml: "config: other.yaml\n", want: []string{"line 1", "cannot be set in a file"}},
		{name: "two documents", yaml: "fast: true\n---\nfast: false\n", want: []string{"only one YAML document"}},
		{name: "enum", args: []string{"--smtp.tls=maybe"}, want: []string{"--smtp.tls", "maybe"}},
		{name: "Validate of an embedded struct", args: []string{"--smtp.username=u"}, want: []string{"smtp.password", "smtp.username"}},
		{name: "no such file", args: []string{"--config=/nowhere/x.yaml"}, want: []string{"--config", "/nowhere/x.yaml"}},
		{name: "address", args: []string{"--listen=7199"}, want: []string{"--listen", "host:port"}},
		{name: "stray argument", args: []string{"up"}, want: []string{"up"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			_, _, err := parse(t, tt.yaml, tt.args...)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if code := config.ExitCode(err); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
		})
	}
}

// Proves that a secret can come from a file named in each of the three ways,
// that the stronger way wins, and that giving it twice is refused.
func TestSecretFromFile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(" from file \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, yaml string
		env        map[string]string
		args       []string
		want       string
		wantErr    string
	}{
		{name: "flag", args: []string{"--smtp.username=u", "--smtp.password-file", secret}, want: " from file "},
		{name: "variable", env: map[string]string{"TOCSIN_SMTP_PASSWORD_FILE": secret}, want: " from file "},
		{name: "file", yaml: "smtp: {password-file: " + secret + "}", want: " from file "},
		{name: "flag over variable", env: map[string]string{"TOCSIN_SMTP_PASSWORD": "env"}, args: []string{"--smtp.password-file", secret}, want: " from file "},
		{name: "variable over file", yaml: "smtp: {password-file: " + secret + "}", env: map[string]string{"TOCSIN_SMTP_PASSWORD": "env"}, want: "env"},
		{name: "twice", env: map[string]string{"TOCSIN_SMTP_PASSWORD": "env", "TOCSIN_SMTP_PASSWORD_FILE": secret}, wantErr: "both set"},
		{name: "twice by flag", args: []string{"--smtp.password=x", "--smtp.password-file", secret}, wantErr: "both set"},
		{name: "absent", args: []string{"--smtp.password-file=/nowhere"}, wantErr: "/nowhere"},
		{name: "empty", args: []string{"--smtp.password-file", empty}, wantErr: "is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			s, _, err := parse(t, tt.yaml, tt.args...)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || strings.Contains(err.Error(), "=env") {
					t.Fatalf("error %v, want one with %q and without the secret", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.SMTP.Password != tt.want {
				t.Errorf("password = %q, want %q", s.SMTP.Password, tt.want)
			}
		})
	}
}

// Proves that --config.print shows each value in force with its origin, that no
// secret is in it, and that what it prints is itself a settings file.
func TestPrint(t *testing.T) {
	t.Setenv("TOCSIN_SMTP_PASSWORD", "hunter2")
	t.Setenv("TOCSIN_KAFKA_BROKERS", "a:1,b:2")
	_, out, err := parse(t, "hold: {offline: 7s}", "--members=4", "--config.print")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"hold:\n  offline: 7s  # ", "tocsin.yaml:1\n",
		"kafka:\n  brokers: [", "  # TOCSIN_KAFKA_BROKERS\n",
		"members: 4  # flag\n",
		"fast: false  # default\n",
		"  # password: (secret)  # TOCSIN_SMTP_PASSWORD\n",
		"listen: \"127.0.0.1:7199\"  # default\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("not printed: %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "hunter2") {
		t.Errorf("the secret was printed:\n%s", out)
	}
	for _, name := range []string{"TOCSIN_SMTP_PASSWORD", "TOCSIN_KAFKA_BROKERS"} {
		os.Unsetenv(name) // t.Setenv puts them back as they were
	}
	again, _, err := parse(t, out)
	if err != nil {
		t.Fatalf("the print is no settings file: %v\n%s", err, out)
	}
	if again.Members != 4 || again.Hold.Offline != 7*time.Second || len(again.Kafka.Brokers) != 2 || again.SMTP.Password != "" {
		t.Errorf("read back %+v", again)
	}
}

// Proves that --config.check runs nothing and answers by exit code alone.
func TestCheck(t *testing.T) {
	var s settings
	p := config.Program{Name: "test", Settings: &s, Stdout: &bytes.Buffer{}}
	if ctx, err := p.Parse([]string{"--config.check"}); ctx != nil || config.ExitCode(err) != 0 {
		t.Errorf("good settings: %v, %v", ctx, err)
	}
	if _, err := p.Parse([]string{"--config.check", "--hold.offline=x"}); config.ExitCode(err) != 2 {
		t.Errorf("bad settings: %v", err)
	}
}

// Proves that help names the variable and ends without an error.
func TestHelp(t *testing.T) {
	_, out, err := parse(t, "", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--hold.offline", "$TOCSIN_HOLD_OFFLINE", "--smtp.password-file", "--config.check"} {
		if !strings.Contains(out, want) {
			t.Errorf("help lacks %q:\n%s", want, out)
		}
	}
}

type withCommands struct {
	Up struct {
		Hold holds `embed:"" prefix:"hold."`
		SMTP relay `embed:"" prefix:"smtp."`
	} `cmd:"" help:"All."`
	Emit struct {
		To   string   `name:"to" default:"x" help:"Where."`
		Both []string `name:"both" help:"Several here."`
	} `cmd:"" help:"Send."`
	Last struct {
		Both string `name:"both" help:"One here."`
	} `cmd:"" help:"Something else."`
}

// Proves that one file and one environment serve all commands of a program:
// another command's settings are known, not validated and not applied.
func TestCommands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(path, []byte("hold: {offline: 9s}\nto: there\nboth: [a, b]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TOCSIN_SMTP_USERNAME", "lonely")
	var c withCommands
	ctx, err := config.Program{Name: "test", Settings: &c}.Parse([]string{"emit", "--config", path})
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Command() != "emit" || c.Emit.To != "there" || len(c.Emit.Both) != 2 {
		t.Errorf("command %q, to %q", ctx.Command(), c.Emit.To)
	}
	_, err = config.Program{Name: "test", Settings: &c}.Parse([]string{"up", "--config", path})
	if err == nil || !strings.Contains(err.Error(), "smtp.password") {
		t.Errorf("up with a user and no password: %v", err)
	}
	if _, err := (config.Program{Name: "test", Settings: &c}).Parse([]string{"up", "--config", path, "--smtp.password=x"}); err != nil || c.Up.Hold.Offline != 9*time.Second {
		t.Errorf("up: %v, hold %v", err, c.Up.Hold.Offline)
	}
}

// Proves that two flags which would share a variable, or a key and a group of
// one name, are found when the program starts.
func TestClashes(t *testing.T) {
	var sameVariable struct {
		A string `name:"a.b"`
		B string `name:"a-b"`
	}
	var keyAndGroup struct {
		A string `name:"data"`
		B string `name:"data.dir"`
	}
	for _, s := range []any{&sameVariable, &keyAndGroup} {
		if _, err := (config.Program{Name: "test", Settings: s}).Parse(nil); err == nil {
			t.Errorf("%T accepted", s)
		}
	}
}

// Proves that a port in use is said with the address and the flag to change.
func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s, _, err := parse(t, "", "--listen", taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Listen.Listen(net.Listen)
	if err == nil || !strings.Contains(err.Error(), taken.Addr().String()) || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("error %v", err)
	}
}

// Proves which addresses count as this machine's own.
func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "192.0.2.1:1": false, "host:1": false,
	} {
		if got := config.NewAddress(addr).Loopback(); got != want {
			t.Errorf("Loopback(%s) = %v", addr, got)
		}
	}
}
