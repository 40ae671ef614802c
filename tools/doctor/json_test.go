package doctor

import (
	"encoding/json"
	"reflect"
	"slices"
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
	var holds []string
	for _, piece := range strings.Split(string(b), `"holds":`)[1:] {
		holds = append(holds, strings.FieldsFunc(piece, func(r rune) bool { return r == ',' || r == '}' })[0])
	}
	if slices.Sort(holds); !slices.Equal(holds, []string{"0", "28231", "28231", "null"}) {
		t.Errorf("they hold %q in %s", holds, b)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(&back, r) {
		t.Errorf("it is read as %+v, %v", back, err)
	}
}
