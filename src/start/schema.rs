//! Compares the definition of a kind that the cluster serves with the one that this version was built with.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};

/// What `found` lacks of `needed`: versions, fields by their path, values of enums. What it has beyond that is none of our
/// business: a definition may be newer than the operator.
pub fn lacks(needed: &CustomResourceDefinition, found: &CustomResourceDefinition) -> Vec<String> {
    let mut lacks = Vec::new();
    for version in needed.spec.versions.iter().filter(|version| version.served) {
        let served = found.spec.versions.iter().find(|other| other.name == version.name && other.served);
        match served {
            None => lacks.push(format!("version {}", version.name)),
            Some(served) => compare_version(version, served, &mut lacks),
        }
    }
    lacks
}

fn compare_version(
    needed: &CustomResourceDefinitionVersion,
    found: &CustomResourceDefinitionVersion,
    lacks: &mut Vec<String>,
) {
    let has_status = |version: &CustomResourceDefinitionVersion| {
        version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some())
    };
    if has_status(needed) && !has_status(found) {
        lacks.push("the subresource status".to_owned());
    }
    let schema = |version: &CustomResourceDefinitionVersion| version.schema.clone()?.open_api_v3_schema;
    if let (Some(needed), Some(found)) = (schema(needed), schema(found)) {
        compare(&needed, &found, "", lacks);
    }
}

fn compare(needed: &JSONSchemaProps, found: &JSONSchemaProps, path: &str, lacks: &mut Vec<String>) {
    let known = found.enum_.iter().flatten().collect::<Vec<_>>();
    // Without a list of values any is allowed.
    for value in needed.enum_.iter().flatten().filter(|value| found.enum_.is_some() && !known.contains(value))
    {
        lacks.push(format!("the value {} of {path}", value.0));
    }
    if found.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, needed) in needed.properties.iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match found.properties.as_ref().and_then(|properties| properties.get(name)) {
            None => lacks.push(path),
            Some(found) => compare(needed, found, &path, lacks),
        }
    }
    if let (Some(JSONSchemaPropsOrArray::Schema(needed)), Some(JSONSchemaPropsOrArray::Schema(found))) =
        (&needed.items, &found.items)
    {
        compare(needed, found, &format!("{path}[]"), lacks);
    }
    if let (Some(JSONSchemaPropsOrBool::Schema(needed)), Some(JSONSchemaPropsOrBool::Schema(found))) =
        (&needed.additional_properties, &found.additional_properties)
    {
        compare(needed, found, &format!("{path}.*"), lacks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{AgentSession, McpServer};
    use kube::CustomResourceExt;
    use serde_json::Value;

    /// What is lacking when the definition that is served was changed by `change`, which gets the schema.
    fn lacking(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut found = serde_json::to_value(AgentSession::crd()).unwrap();
        change(&mut found["spec"]["versions"][0]);
        lacks(&AgentSession::crd(), &serde_json::from_value(found).unwrap())
    }

    fn remove(object: &mut Value, key: &str) {
        object.as_object_mut().unwrap().remove(key).unwrap();
    }

    #[test]
    fn every_kind_has_all_that_it_needs_itself() {
        for crd in [AgentSession::crd(), McpServer::crd()] {
            assert_eq!(lacks(&crd, &crd), Vec::<String>::new());
        }
    }

    #[test]
    fn fields_and_values_are_named_by_their_path_at_any_depth() {
        let properties = |version: &mut Value| {
            let schema = &mut version["schema"]["openAPIV3Schema"]["properties"];
            remove(&mut schema["spec"]["properties"], "bindTimeout");
            remove(
                &mut schema["status"]["properties"]["servers"]["items"]["properties"]["podRef"]["properties"],
                "uid",
            );
            let reasons = &mut schema["spec"]["properties"]["end"]["properties"]["reason"]["enum"];
            reasons.as_array_mut().unwrap().retain(|reason| reason != "Shutdown");
        };
        let mut found = lacking(properties);
        found.sort();
        assert_eq!(
            found,
            ["spec.bindTimeout", "status.servers[].podRef.uid", "the value \"Shutdown\" of spec.end.reason"]
        );
    }

    #[test]
    fn what_a_newer_definition_has_beside_it_does_not_matter() {
        let newer = |version: &mut Value| {
            let schema = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
            schema["later"] = serde_json::json!({"type": "string"});
            remove(&mut schema["end"]["properties"]["reason"], "enum");
        };
        assert_eq!(lacking(newer), Vec::<String>::new());
    }

    #[test]
    fn a_version_that_is_not_served_or_has_no_status_is_said() {
        assert_eq!(lacking(|version| version["served"] = false.into()), ["version v1alpha1"]);
        assert_eq!(lacking(|version| remove(version, "subresources")), ["the subresource status"]);
    }

    #[test]
    fn fields_that_a_schema_leaves_open_are_there() {
        let open = |version: &mut Value| {
            let schema = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            remove(schema, "properties");
            schema["x-kubernetes-preserve-unknown-fields"] = true.into();
        };
        assert_eq!(lacking(open), Vec::<String>::new());
    }
}
