package account

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/google/go-cmp/cmp"

	"github.com/tocsin/tocsin/services/gateway/internal/schedule"
)

var update = flag.Bool("update", false, "write the effects of the scripts into them; read them before you keep them")

// Proves the rules by transcripts: each line of testdata/*.script is an input
// at a time, the lines "=>" below it are all of its effects. The language:
//
//	account [unknown] [inactive] [no-status] [mode=M] [zone=Z]
//	user ID [gone] [disabled] [admin] [foreign] [levels=low+high+system] [zone=Z]
//	        [windows=none|DAYS/HH:MM-HH:MM,…] [stopped=TYPE+device:ID]
//	device ID [region=ID:LEVEL[:off][:modes~M+N][:to~U+V]]…
//	+T notify TYPE DEVICE ID [since=+T] [hold=D] [outage=ID] [region=ID] [stage=S]
//	+T tick | time | result USER/ID ATTEMPT OUTCOME | renew USER/ID ATTEMPT
//	+T sent              every attempt under way is
//
// A user has all windows and, unless said otherwise, the level system and is
// an administrator. A mail is USER/NOTIFICATION.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newScript().run(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); diff != "" && !*update {
				t.Errorf("effects differ (-script +machine):\n%s", diff)
			}
		})
	}
}

type script struct {
	driver
	users  map[string]User
	names  map[string]string // mail id -> "user/notification"
	ids    map[string]string // and back
	offset int64
}

func newScript() *script {
	s := &script{users: map[string]User{}, names: map[string]string{}, ids: map[string]string{}}
	s.driver = *newDriver(&Settings{
		Known: true, Active: true, StatusMails: true, Name: "Acme",
		Devices: map[string]Device{}, Sites: map[string]string{},
	})
	return s
}

func (s *script) run(t *testing.T, text string) string {
	var out []string
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "=>") {
			continue
		}
		out = append(out, line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		effects, err := s.line(words)
		if err != nil {
			t.Fatalf("line %d: %q: %v", i+1, line, err)
		}
		for _, e := range effects {
			if text := s.show(e); text != "" {
				out = append(out, "    => "+text)
			}
		}
	}
	return strings.Join(out, "\n")
}

func (s *script) line(words []string) ([]Effect, error) {
	opts := map[string]string{}
	var regions []string
	var args []string
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			opts[k] = v
			if k == "region" {
				regions = append(regions, v)
			}
			continue
		}
		args = append(args, w)
	}
	has := func(w string) bool { return slices.Contains(args[1:], w) }
	switch args[0] {
	case "account":
		s.set.Known, s.set.Active, s.set.StatusMails = !has("unknown"), !has("inactive"), !has("no-status")
		s.set.Mode = opts["mode"]
		if z, ok := opts["zone"]; ok {
			s.set.Zone = mustLoad(z)
		}
		return nil, nil
	case "user":
		return nil, s.user(args[1], has, opts)
	case "device":
		d := Device{Name: "The " + args[1]}
		for _, r := range regions {
			d.Regions = append(d.Regions, region(r))
		}
		s.set.Devices[args[1]] = d
		return nil, nil
	}
	after, err := time.ParseDuration(strings.TrimPrefix(args[0], "+"))
	if err != nil {
		return nil, err
	}
	at := start.Add(after)
	switch args[1] {
	case "tick":
		return s.feed(at, Decide{At: at}), nil
	case "time":
		return s.feed(at, nil), nil
	case "notify":
		n, err := s.notification(at, args[2:], opts)
		if err != nil {
			return nil, err
		}
		s.offset++
		return s.feed(at, Notified{At: at, Offset: s.offset, Notification: n}), nil
	case "sent":
		var flying []string
		for id, m := range s.state.mails {
			if m.Status == Attempting {
				flying = append(flying, s.names[id])
			}
		}
		slices.Sort(flying)
		var effects []Effect
		for _, name := range flying {
			m := s.state.mails[s.ids[name]]
			effects = append(effects, s.feed(at, Ended{At: at, Result: Result{Mail: m.ID, Attempt: m.Attempt, Outcome: Sent, End: at}})...)
		}
		return effects, nil
	case "renew":
		attempt, err := strconv.Atoi(args[3])
		return s.feed(at, Renewed{At: at, Mail: s.ids[args[2]], Attempt: attempt}), err
	case "result":
		attempt, err := strconv.Atoi(args[3])
		outcome := Reason(slices.Index(reasonNames[:], args[4]))
		return s.feed(at, Ended{At: at, Result: Result{Mail: s.ids[args[2]], Attempt: attempt, Outcome: outcome, End: at}}), err
	}
	return nil, fmt.Errorf("unknown input %q", args[1])
}

func (s *script) user(id string, has func(string) bool, opts map[string]string) error {
	delete(s.users, id)
	if !has("gone") {
		u := User{ID: id, Name: "Name of " + id, Address: id + "@acme.test", Enabled: !has("disabled"),
			Admin: true, Levels: System, Foreign: has("foreign"), Windows: schedule.Always()}
		if l, ok := opts["levels"]; ok {
			u.Levels, u.Admin = 0, has("admin")
			for _, name := range strings.Split(l, "+") {
				u.Levels |= level(name)
			}
		}
		if z, ok := opts["zone"]; ok {
			u.Zone = mustLoad(z)
		}
		if w, ok := opts["windows"]; ok {
			u.Windows = nil
			for _, one := range strings.Split(w, ",") {
				if one != "none" {
					u.Windows = append(u.Windows, parseWindow(one))
				}
			}
		}
		if list, ok := opts["stopped"]; ok {
			for _, one := range strings.Split(list, "+") {
				if d, ok := strings.CutPrefix(one, "device:"); ok {
					u.StoppedDevices = append(u.StoppedDevices, d)
				} else {
					u.StoppedTypes = append(u.StoppedTypes, Type(slices.Index(typeNames[:], one)))
				}
			}
		}
		s.users[id] = u
	}
	s.set.Users = nil
	for _, id := range slices.Sorted(maps.Keys(s.users)) {
		s.set.Users = append(s.set.Users, s.users[id])
	}
	return nil
}

func (s *script) notification(at time.Time, args []string, opts map[string]string) (*Notification, error) {
	n := &Notification{
		Type: Type(slices.Index(typeNames[:], args[0])), Device: args[1], ID: args[2],
		Stage: Due, Since: at, Outage: opts["outage"], Region: opts["region"],
	}
	if v, ok := opts["since"]; ok {
		after, err := time.ParseDuration(v)
		if err != nil {
			return nil, err
		}
		n.Since = start.Add(after)
	}
	if v, ok := opts["hold"]; ok {
		n.Hold, _ = time.ParseDuration(v)
	}
	stages := []string{"", "pending", "withdrawn", "due", "late", "paused", "resumed"}
	if v, ok := opts["stage"]; ok {
		n.Stage = Stage(slices.Index(stages, v))
	}
	for _, user := range []string{"ann", "bob", "cid", "dan", "eve"} {
		id, name := MailID(n.ID, user), user+"/"+n.ID
		s.names[id], s.ids[name] = name, id
	}
	return n, nil
}

func (s *script) show(e Effect) string {
	switch e := e.(type) {
	case Decided:
		text := "decided " + e.Notification.ID
		if e.Further {
			text += " further"
		}
		for _, o := range e.Outcomes {
			text += fmt.Sprintf("; %s: %s", o.Reason, strings.Join(o.Users, " "))
		}
		return text
	case Begun:
		text := fmt.Sprintf("try %s #%d, lease to +%s", s.names[e.Mail.ID], e.Mail.Attempt, e.Mail.Lease.Sub(start))
		for _, id := range e.Mail.References {
			text += ", after " + s.names[strings.TrimSuffix(id, "@"+s.rules.MessageDomain)]
		}
		return text
	case Attempted:
		text := s.names[e.Mail.ID]
		if e.Attempt != 0 {
			text += fmt.Sprintf(" #%d", e.Attempt)
		}
		text += " " + e.Reason.String()
		if e.Settled {
			text += ", settled"
		}
		if m := e.Mail; m.Status == Waiting && !e.Settled {
			text += ", again at +" + m.Next.Sub(start).String()
		}
		return text
	case Counted:
		return "ignored: " + string(e.Why)
	}
	return ""
}

func level(name string) Level {
	return map[string]Level{"low": Low, "high": High, "system": System}[name]
}

func region(text string) Region {
	parts := strings.Split(text, ":")
	r := Region{ID: parts[0], Name: "Region " + parts[0], Level: level(parts[1]), Enabled: true}
	for _, p := range parts[2:] {
		switch k, v, _ := strings.Cut(p, "~"); k {
		case "off":
			r.Enabled = false
		case "modes":
			r.Modes = strings.Split(v, "+")
		case "to":
			r.Recipients = strings.Split(v, "+")
		}
	}
	return r
}

func parseWindow(text string) schedule.Window {
	names := []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}
	var w schedule.Window
	days, hours, _ := strings.Cut(text, "/")
	for i, name := range names {
		if days == "*" || strings.Contains(days, name) {
			w.Days |= 1 << i
		}
	}
	var sh, sm, eh, em int
	if _, err := fmt.Sscanf(hours, "%d:%d-%d:%d", &sh, &sm, &eh, &em); err != nil {
		panic(err)
	}
	w.Start, w.End = sh*60+sm, eh*60+em
	return w
}

func mustLoad(name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return loc
}
