package ec2

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// clustersPath is where EKS' REST API has clusters (Amazon EKS API reference, "DescribeCluster", "ListClusters").
const clustersPath = "/clusters"

// Cluster is one of Amazon EKS.
type Cluster struct {
	Name, Version string
	// Status is ACTIVE when empty.
	Status string
	// Endpoint is the API server's URL, and CA its certificate, PEM.
	Endpoint string
	CA       []byte
	// Private says that the API server is reached from the VPC only, and PublicFrom from which networks else; any for none.
	Private    bool
	PublicFrom []string
	VPC        string
	Subnets    []string
	// Group is the cluster security group, which EKS makes.
	Group string
	// Issuer is that of the tokens of service accounts, https://….
	Issuer string
	// Family is that of pods' and Services' addresses: ipv4 when empty, or ipv6.
	Family string
	// Auto says that the cluster is in Auto Mode, with its disks.
	Auto bool
	// Associations are those of EKS Pod Identity.
	Associations []Association
}

// Association gives the pods of a service account a role, by EKS Pod Identity.
type Association struct {
	ID, Namespace, ServiceAccount, Role string
	// Target is the ARN of a role that Role assumes. Pods then have its rights; "" for none.
	Target string
	// NoTags says that sessions have no tags.
	NoTags bool
	// Policy narrows what pods may do; "" for none.
	Policy string
}

// associationJSON is one of an answer (Amazon EKS API reference, "PodIdentityAssociation", "PodIdentityAssociationSummary").
type associationJSON struct {
	ID             string `json:"associationId"`
	Cluster        string `json:"clusterName"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Not in lists.
	Role   string `json:"roleArn,omitempty"`
	Target string `json:"targetRoleArn,omitempty"`
	NoTags bool   `json:"disableSessionTags,omitempty"`
	Policy string `json:"policy,omitempty"`
}

// clusterJSON is a cluster of an answer (Amazon EKS API reference, "Cluster").
type clusterJSON struct {
	Name     string `json:"name"`
	ARN      string `json:"arn"`
	Version  string `json:"version"`
	Status   string `json:"status"`
	Endpoint string `json:"endpoint"`
	CA       struct {
		Data string `json:"data"`
	} `json:"certificateAuthority"`
	VPC struct {
		ID      string   `json:"vpcId"`
		Subnets []string `json:"subnetIds"`
		Group   string   `json:"clusterSecurityGroupId"`
		Public  bool     `json:"endpointPublicAccess"`
		Private bool     `json:"endpointPrivateAccess"`
		From    []string `json:"publicAccessCidrs,omitempty"`
	} `json:"resourcesVpcConfig"`
	Network struct {
		Family string `json:"ipFamily"`
	} `json:"kubernetesNetworkConfig"`
	Identity struct {
		OIDC struct {
			Issuer string `json:"issuer"`
		} `json:"oidc"`
	} `json:"identity"`
	Compute struct {
		Enabled bool `json:"enabled"`
	} `json:"computeConfig"`
	Storage struct {
		Block struct {
			Enabled bool `json:"enabled"`
		} `json:"blockStorage"`
	} `json:"storageConfig"`
}

// eksService is Amazon EKS.
type eksService struct {
	*base
	callers *callers
	roles   *roles

	associations map[string][]Association // of EKS Pod Identity that calls have made, by cluster
}

func (m *eksService) shown(c Cluster) clusterJSON {
	out := clusterJSON{
		Name:     c.Name,
		ARN:      m.arnOf("eks", m.cfg.Region, m.cfg.Account, "cluster/"+c.Name),
		Version:  c.Version,
		Status:   c.Status,
		Endpoint: c.Endpoint,
	}
	if out.Status == "" {
		out.Status = "ACTIVE"
	}
	out.CA.Data = base64.StdEncoding.EncodeToString(c.CA)
	out.VPC.ID, out.VPC.Subnets, out.VPC.Group, out.VPC.Public, out.VPC.Private = c.VPC, c.Subnets, c.Group, !c.Private, c.Private
	if out.VPC.From = c.PublicFrom; c.PublicFrom == nil && !c.Private {
		out.VPC.From = []string{"0.0.0.0/0"}
	}
	if out.Network.Family = c.Family; c.Family == "" {
		out.Network.Family = "ipv4"
	}
	out.Identity.OIDC.Issuer = c.Issuer
	out.Compute.Enabled, out.Storage.Block.Enabled = c.Auto, c.Auto
	return out
}

// serveEKS answers a call of Amazon EKS.
func (m *eksService) serveEKS(w http.ResponseWriter, r *http.Request) {
	name, below, within := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, clustersPath), "/"), "/")
	kind, id, one := strings.Cut(below, "/")
	action, resource := "DescribeCluster", m.arnOf("eks", m.cfg.Region, m.cfg.Account, "cluster/"+name)
	do := func() (any, error) { return m.describeCluster(name) }
	switch {
	case within && one:
		action = "DescribePodIdentityAssociation"
		resource = m.arnOf("eks", m.cfg.Region, m.cfg.Account, "podidentityassociation/"+name+"/"+id)
		do = func() (any, error) { return m.describeAssociation(name, id) }
	case within && r.Method == http.MethodPost:
		action = "CreatePodIdentityAssociation"
		do = func() (any, error) { return m.createAssociation(name, r.Body) }
	case within:
		action = "ListPodIdentityAssociations"
		do = func() (any, error) { return m.listAssociations(name, r.URL.Query()) }
	case name == "":
		action, resource, do = "ListClusters", "*", m.listClusters
	}
	m.callers.serveJSON(w, r, jsonService{name: "eks", message: "message"}, action, resource, func(*request) (any, error) {
		if r.Method != http.MethodGet && action != "CreatePodIdentityAssociation" || within && kind != "pod-identity-associations" {
			return nil, &apiError{http.StatusNotFound, "UnknownOperationException", "The model reads clusters, and reads and makes associations"}
		}
		return do()
	})
}

func (m *eksService) listClusters() (any, error) {
	names := []string{}
	for _, c := range m.cfg.Clusters {
		names = append(names, c.Name)
	}
	return map[string]any{"clusters": names}, nil
}

func (m *eksService) cluster(name string) (Cluster, error) {
	n := slices.IndexFunc(m.cfg.Clusters, func(c Cluster) bool { return c.Name == name })
	if n < 0 {
		return Cluster{}, &apiError{http.StatusNotFound, "ResourceNotFoundException", "No cluster found for name: " + name + "."}
	}
	return m.cfg.Clusters[n], nil
}

func (m *eksService) describeCluster(name string) (any, error) {
	c, err := m.cluster(name)
	if err != nil {
		return nil, err
	}
	return map[string]any{"cluster": m.shown(c)}, nil
}

// associationsOf are those of a cluster: of Config, and made by calls.
func (m *eksService) associationsOf(c Cluster) []Association {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Concat(c.Associations, m.associations[c.Name])
}

func shownAssociation(c Cluster, a Association) any {
	return map[string]any{"association": associationJSON{a.ID, c.Name, a.Namespace, a.ServiceAccount, a.Role, a.Target, a.NoTags, a.Policy}}
}

func (m *eksService) describeAssociation(name, id string) (any, error) {
	c, err := m.cluster(name)
	if err != nil {
		return nil, err
	}
	all := m.associationsOf(c)
	n := slices.IndexFunc(all, func(a Association) bool { return a.ID == id })
	if n < 0 {
		return nil, &apiError{http.StatusNotFound, "ResourceNotFoundException", "The association " + id + " does not exist"}
	}
	return shownAssociation(c, all[n]), nil
}

// podService assumes the roles of associations.
const podService = "pods.eks.amazonaws.com"

// createAssociation makes an association of a role that podService may assume. Sources: Amazon EKS API reference,
// "CreatePodIdentityAssociation"; hashicorp/terraform-provider-aws, internal/service/eks/pod_identity_association.go, for the refusal of a
// role that is not there, and issue 41483 for that of a role that trusts an identity provider alone.
func (m *eksService) createAssociation(name string, body io.Reader) (any, error) {
	c, err := m.cluster(name)
	if err != nil {
		return nil, err
	}
	var in struct {
		Namespace, ServiceAccount, RoleArn, TargetRoleArn, ClientRequestToken, Policy string
		DisableSessionTags                                                            bool
	}
	read := json.NewDecoder(body)
	read.DisallowUnknownFields()
	if err := read.Decode(&in); err != nil {
		return nil, bad("InvalidParameterException", "%v", err)
	}
	if slices.ContainsFunc(m.associationsOf(c), func(a Association) bool {
		return a.Namespace == in.Namespace && a.ServiceAccount == in.ServiceAccount
	}) {
		return nil, &apiError{http.StatusConflict, "ResourceInUseException", "Association already exists"}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	role, has := m.roles.byName[IAMRole{ARN: in.RoleArn}.name()]
	switch {
	case !has || role.ARN != in.RoleArn:
		return nil, bad("InvalidParameterException", "Role provided in the request does not exist.")
	case !trustsPods(role.Trust):
		return nil, bad("InvalidParameterException", "Trust policy of the role provided is invalid.")
	}
	m.made++
	a := Association{
		ID:             fmt.Sprintf("a-%017x", m.made),
		Namespace:      in.Namespace,
		ServiceAccount: in.ServiceAccount,
		Role:           in.RoleArn,
		Target:         in.TargetRoleArn,
		NoTags:         in.DisableSessionTags,
		Policy:         in.Policy,
	}
	m.associations[name] = append(m.associations[name], a)
	return shownAssociation(c, a), nil
}

// trustsPods reports whether a trust policy lets podService assume its role and tag the session. What EKS makes of conditions is not known,
// and none is looked at.
func trustsPods(document string) bool {
	var trust struct {
		Statement []struct {
			Effect    string
			Principal struct{ Service oneOrMany }
			Action    oneOrMany
		}
	}
	if json.Unmarshal([]byte(document), &trust) != nil {
		return false
	}
	may := map[string]bool{}
	for _, s := range trust.Statement {
		for _, action := range s.Action {
			may[action] = may[action] || s.Effect == "Allow" && slices.Contains(s.Principal.Service, podService)
		}
	}
	return may["sts:AssumeRole"] && may["sts:TagSession"]
}

func (m *eksService) listAssociations(name string, asked url.Values) (any, error) {
	c, err := m.cluster(name)
	if err != nil {
		return nil, err
	}
	all := []associationJSON{}
	for _, a := range m.associationsOf(c) {
		if (!asked.Has("namespace") || asked.Get("namespace") == a.Namespace) &&
			(!asked.Has("serviceAccount") || asked.Get("serviceAccount") == a.ServiceAccount) {
			all = append(all, associationJSON{ID: a.ID, Cluster: c.Name, Namespace: a.Namespace, ServiceAccount: a.ServiceAccount})
		}
	}
	return map[string]any{"associations": all}, nil
}
