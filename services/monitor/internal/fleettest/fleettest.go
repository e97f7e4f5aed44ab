// Package fleettest makes up recordings for the monitor's tests. It is for
// tests only.
package fleettest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// Lines makes a recording of so many events with every kind of trouble that the rules know of,
// crowded on few devices and on round times, so that ties and edges are common.
func Lines(seed uint64, events int) []string {
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	chance := func(percent int) bool { return r.IntN(100) < percent }
	grain := []time.Duration{time.Second, 5 * time.Second, time.Millisecond, 20 * time.Second}[r.IntN(4)]
	round := func(d time.Duration) time.Duration { return d.Truncate(grain) }
	clock := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	layout := func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

	sequences := map[string]uint64{}
	var lines []string
	for n := range events {
		if chance(3) {
			clock = clock.Add(round(time.Duration(r.Int64N(int64(30 * time.Minute)))))
		} else if chance(70) {
			clock = clock.Add(round(time.Duration(r.Int64N(int64(30 * time.Second)))))
		}
		if len(lines) > 0 && chance(6) { // the same event again, with its own append time or another
			old := lines[r.IntN(len(lines))]
			if chance(70) {
				old = lines[max(0, len(lines)-1-r.IntN(20))]
			}
			var e map[string]any
			if err := json.Unmarshal([]byte(old), &e); err != nil {
				panic(err)
			}
			if chance(70) {
				e["appendTime"] = layout(clock)
			}
			text, err := json.Marshal(e)
			if err != nil {
				panic(err)
			}
			lines = append(lines, string(text))
			continue
		}
		appended := clock
		if chance(5) {
			appended = clock.Add(-round(time.Duration(r.Int64N(int64(90 * time.Second)))))
		}
		e := map[string]any{
			"eventId": fmt.Sprintf("e%d", n), "appendTime": layout(appended),
			"accountId": pick("a", "a-b", "a.b", "b"), "deviceId": pick("cam-1", "cam-2", "cam.1", "d"),
		}
		// When it was received, and when it occurred.
		receive := appended
		if chance(15) {
			receive = appended.Add(-round(time.Duration(r.Int64N(int64([]time.Duration{2 * time.Minute, 3 * time.Hour}[r.IntN(2)])))))
			if chance(10) {
				receive = appended.Add(grain)
			}
			e[pick("spooled", "restated")] = true
			e["receiveTime"] = layout(receive)
		}
		occur := receive.Add(-round(time.Duration(r.Int64N(int64(2 * time.Second)))))
		switch r.IntN(24) {
		case 0, 1:
			occur = receive.Add(-round(time.Duration(r.Int64N(int64(3 * time.Minute)))))
		case 2:
			occur = receive.Add(-round(time.Duration(r.Int64N(int64(40 * time.Minute)))))
		case 3:
			occur = receive.Add(round(time.Duration(r.Int64N(int64(25 * time.Second)))))
		case 4:
			occur = receive.Add(30 * 24 * time.Hour)
		case 5:
			occur = receive.Add(-7*24*time.Hour + time.Duration(r.IntN(3)-1)*time.Millisecond)
		case 6:
			occur = []time.Time{time.Unix(0, 0), time.Unix(-5, 0), time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC)}[r.IntN(3)]
		case 7:
			occur = receive.Add([]time.Duration{-time.Minute, time.Minute, -15 * time.Minute, -time.Hour}[r.IntN(4)])
		}
		if !chance(4) {
			e["occurTime"] = layout(occur)
		}
		if !chance(30) {
			source, epoch := pick("s1", "s2"), pick("1", "1", "1", "2")
			e["sourceId"], e["sourceEpoch"] = source, epoch
			run := fmt.Sprint(e["accountId"], e["deviceId"], source, epoch)
			if !chance(25) {
				sequences[run]++
				if chance(3) {
					sequences[run] = 1
				}
				sequence := sequences[run]
				if chance(10) {
					sequence = max(1, sequence-uint64(r.IntN(4)))
				}
				e["sequence"] = fmt.Sprint(sequence)
			}
		} else if chance(10) {
			e["sourceId"] = "s1"
		}
		switch {
		case chance(15):
			m := map[string]any{"phase": pick("START", "START", "START", "UPDATE", "END")}
			if !chance(15) {
				m["spanId"] = fmt.Sprint("m", r.IntN(60))
			}
			if !chance(30) {
				m["regionId"] = pick("door", "yard")
			}
			e["motion"] = m
		case chance(3):
			e["heartbeat"] = map[string]any{}
		case chance(40):
			e["status"] = map[string]any{"state": pick("ONLINE", "ONLINE", "OFFLINE", "INTERNET_OFFLINE", "OFF", "REBOOTING", "UNKNOWN")}
		default:
			s := map[string]any{"bits": []int{1441847, 1441847, 1179681, 131073, 1179937, 1048609, 1507383, 0, 256, 1179649}[r.IntN(10)]}
			if chance(15) {
				s["kind"] = pick("BRIDGE", "CAMERA")
			}
			e["status"] = s
		}
		text, err := json.Marshal(e)
		if err != nil {
			panic(err)
		}
		lines = append(lines, string(text))
	}
	return lines
}
