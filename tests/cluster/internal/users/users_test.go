package users

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func token(name string) string { return Prefix + base64.RawURLEncoding.EncodeToString([]byte(name)) }

// ask sends a TokenReview as the API server does.
func ask(t *testing.T, asked spec) status {
	t.Helper()
	server := httptest.NewServer(handler())
	defer server.Close()
	body, err := json.Marshal(review{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview", Spec: &asked})
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(server.URL+"/review", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer review
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if answer.APIVersion != "authentication.k8s.io/v1" || answer.Kind != "TokenReview" || answer.Status == nil {
		t.Fatalf("not a review: %+v", answer)
	}
	return *answer.Status
}

func TestATokenIsOfTheUserItNamesByteForByte(t *testing.T) {
	names := []string{
		"日本@example.test", `CORP\u1`, "e\u0301@example.test", "\u00e9@example.test", `"a,b" <c>&`, "a b\n",
		strings.Repeat("x", 1024), "system:serviceaccount:demo:alice",
	}
	for _, name := range names {
		answer := ask(t, spec{Token: token(name), Audiences: []string{"other", Audience}})
		if !answer.Authenticated || answer.User == nil || answer.User.Username != name {
			t.Errorf("%q: %+v", name, answer)
			continue
		}
		if !slices.Equal(answer.User.Groups, []string{Group}) || !slices.Equal(answer.Audiences, []string{Audience}) {
			t.Errorf("%q: %+v %+v", name, answer.User, answer)
		}
	}
}

func TestATokenOpensNothingForAnotherAudience(t *testing.T) {
	for _, audiences := range [][]string{nil, {"https://kubernetes.default.svc.cluster.local"}} {
		if answer := ask(t, spec{Token: token("berth-admin"), Audiences: audiences}); answer.Authenticated || answer.User != nil {
			t.Errorf("%q: %+v", audiences, answer)
		}
	}
}

func TestWhatIsNoTokenOfOursIsRefused(t *testing.T) {
	for _, bad := range []string{
		"", "test-user", Prefix, Prefix + "%%%", token("alice") + "=", "x" + token("alice"),
		Prefix + "YR", // not canonical: the last bits do not count
		Prefix + base64.RawURLEncoding.EncodeToString([]byte{0xff, 0xfe}),
	} {
		if answer := ask(t, spec{Token: bad, Audiences: []string{Audience}}); answer.Authenticated {
			t.Errorf("%q: %+v", bad, answer)
		}
	}
}

func TestWhatIsNoReviewIsRefused(t *testing.T) {
	server := httptest.NewServer(handler())
	defer server.Close()
	for _, body := range []string{"", "{}", "[]", `{"spec": 1}`} {
		response, err := http.Post(server.URL+"/review", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", body, response.Status)
		}
	}
}
