package doctor

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestReportJSON(t *testing.T) {
	r := &Report{
		Plan: Plan{Connections: 100_000, Side: Both}, Holds: 28_231, First: "ports",
		Walls: []Wall{
			{Name: "ports", Holds: 28_231, Changes: []Change{{Sysctl, rangeName, "32768 60999", "1024 65535"}}},
			{Name: "conntrack", Holds: Unlimited},
			{Name: "backlog", Holds: 0, Soft: true},
		},
		Facts: &Facts{Nodes: 1},
	}
	b, err := json.Marshal(r)
	testkit.RequireNoError(t, err)
	for _, want := range []string{`"holds":28231`, `"name":"conntrack"`, `"holds":null`, `"holds":0`, `"facts":{`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
	if n := strings.Count(string(b), `"holds"`); n != 4 {
		t.Errorf(`"holds" is there %d times, expected 4: %s`, n, b)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(&back, r) {
		t.Errorf("it is read as %+v, %v", back, err)
	}
	if b, err = json.Marshal(&Report{Holds: Unlimited}); err != nil || !strings.Contains(string(b), `"holds":null`) {
		t.Errorf("without a wall: %s, %v", b, err)
	}
}
