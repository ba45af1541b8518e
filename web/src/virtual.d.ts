declare module "virtual:views" {
  const views: unknown[];
  export default views;
}
declare module "*.css";
